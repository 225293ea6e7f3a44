"""Models of the pages about tenants: GPUs held now, jobs, incidents, account, quotas, budget, statements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from http import HTTPStatus

import msgspec

from railscope import api as resources, claim_terms, service, timestamps
from railscope_collector.account import account_cells, account_sums
from railscope_collector.billing import billing_reader, charges
from railscope_collector.console import PageProblemError, billing_pages, incident_pages, page_table
from railscope_collector.files.quotas_file import Quota
from railscope_collector.http import incidents_api, read_api
from railscope_collector.metering import tiling, units
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.workloads.job_roster import RunningJob

MAX_JOBS, MAX_INCIDENTS, MAX_STATEMENTS = 20, 10, 24
_HOUR_PLACES = 3
_PERCENT_PLACES = 1
_UNKNOWN_PLACES = 2
"""Decimals of a budget while its currency is unknown."""


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant in the list; quantities are decimal numbers as text."""

    tenant: str
    gpus: str
    """GPUs that it holds now."""
    gpu_hours: str
    """GPU time that it has held so far."""


class TenantsModel(msgspec.Struct, frozen=True):
    """Tenants with GPU time, those that hold most GPUs first."""

    timestamp_ns: int
    rows: tuple[TenantRow, ...]
    found: int
    page: int
    pages: int


class HeldGpuRow(msgspec.Struct, frozen=True):
    """A GPU, or a share of it, that a job of the tenant holds now."""

    node: str
    gpu: str
    index: str
    source: str
    workload: str
    share: str
    """1, or a fraction such as 3/7."""
    start_ns: int


class TenantJobRow(msgspec.Struct, frozen=True):
    """A running job of the tenant."""

    source: str
    workload: str
    gpus: str
    nodes: int
    start_ns: int


class TenantQuotaRow(msgspec.Struct, frozen=True):
    """A quota in force, and its use in the current period. Empty for no bound."""

    period: str
    gpu_hours: str
    used_gpu_hours: str
    gpus: str


class TenantCharges(msgspec.Struct, frozen=True):
    """Charges of a tenant in the newest month with finalized days, and its budget. Empty if unknown or none."""

    period: str
    last_day: str
    """The last finalized day; open days are not included."""
    currency: str
    problem: str
    """Reason why there is no amount."""
    amount: str = ""
    budget: str = ""
    used_percent: str = ""
    remaining: str = ""
    """Budget less the amount; negative if it is exceeded."""
    is_outdated: bool = False
    """True while a newer ledger or newer prices are being rated."""

    @property
    def is_charged(self) -> bool:
        """True if the amount is not zero."""
        return bool(self.amount.strip("0.,"))


class TenantHoldings(msgspec.Struct, frozen=True):
    """Jobs of a tenant, and one page of the GPUs that these hold."""

    jobs: tuple[TenantJobRow, ...]
    job_count: int
    gpus: tuple[HeldGpuRow, ...]
    gpu_count: int
    pages: int


class TenantIncidents(msgspec.Struct, frozen=True):
    """Open incidents that touch jobs of a tenant; the worst first."""

    rows: tuple[resources.IncidentDocument, ...]
    count: int


class TenantModel(msgspec.Struct, frozen=True):
    """One tenant. What the role of the reader may not see is null."""

    timestamp_ns: int
    tenant: str
    page: int
    until_ns: int
    """Time up to which the account is computed; 0 while there is none."""
    held_gpu_hours: str
    gpu_hours: dict[str, str]
    """GPU time so far by state."""
    quotas: tuple[TenantQuotaRow, ...]
    holdings: TenantHoldings | None = None
    incidents: TenantIncidents | None = None
    charges: TenantCharges | None = None
    statements: tuple[billing_reader.IssuedInvoice, ...] | None = None
    """The newest ones."""
    statements_problem: str = ""


@dataclass(slots=True)
class TenantPages:
    """Models from the views, and from the books for statements."""

    api: read_api.ViewApi
    billing: billing_pages.BillingPages

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"tenants": self._tenants, "tenant": self._tenant}

    async def _tenants(self, request: page_table.PageRequest) -> TenantsModel:
        return await service.run_in_thread(self._make_tenants, request)

    def _make_tenants(self, request: page_table.PageRequest) -> TenantsModel:
        views = self.api.views()
        units_now = _held_units(views)
        sums = views.account.tenants() if views.account else {}
        names = {request.tenant} if request.tenant else {*sums, *units_now}
        ordered = sorted(names, key=lambda name: (-units_now.get(name, 0), name))
        shown, pages = page_table.split_page(ordered, request.query.page)
        rows = [
            TenantRow(
                name,
                _decimal(Fraction(units_now.get(name, 0), claim_terms.GPU_CAPACITY)),
                _gpu_hours(_held_time(sums.get(name, {}))),
            )
            for name in shown
        ]
        page = request.query.page
        return TenantsModel(views.timestamp_ns, tuple(rows), len(ordered), page, pages)

    async def _tenant(self, request: page_table.PageRequest) -> TenantModel:
        model = await service.run_in_thread(self._make_tenant, request)
        if request.may_read("statements"):
            try:
                issued = await self.billing.issued(request, model.tenant)
                month = await self.billing.month_charges(request)
                statements, problem = tuple(reversed(issued[-MAX_STATEMENTS:])), ""
            except PageProblemError as error:
                statements, problem = (), error.text
                month = billing_reader.MonthCharges(problem=problem)
            model = msgspec.structs.replace(
                model,
                charges=self._charges(request, month),
                statements=statements,
                statements_problem=problem,
            )
        is_charged = model.charges is not None and (
            model.charges.budget or model.charges.is_charged
        )
        is_listed = model.gpu_hours or model.quotas or model.statements
        is_known = is_listed or is_charged or request.tenant
        if not is_known and model.tenant not in _held_units(self.api.views()):
            text = f"unknown tenant {model.tenant[:40]!r}: expected one of the list"
            raise PageProblemError(HTTPStatus.NOT_FOUND, text)
        return model

    def _make_tenant(self, request: page_table.PageRequest) -> TenantModel:
        views, tenant = self.api.views(), request.parts["tenant"]
        account = views.account
        sums = account.tenants().get(tenant, {}) if account else {}
        return TenantModel(
            timestamp_ns=views.timestamp_ns,
            tenant=tenant,
            page=request.query.page,
            until_ns=account.until_ns if account else 0,
            held_gpu_hours=_gpu_hours(_held_time(sums)),
            gpu_hours={state.value: _gpu_hours(time) for state, time in sorted(sums.items())},
            quotas=tuple(self._quotas(tenant, account)) if account else (),
            holdings=self._holdings(request) if request.may_read("jobs") else None,
            incidents=self._incidents(request) if request.may_read("incidents") else None,
        )

    def _quotas(
        self, tenant: str, account: account_sums.GpuTimeAccount
    ) -> Iterator[TenantQuotaRow]:
        for quota in self.api.metrics.files.quotas.content.in_force(account.until_ns):
            if quota.tenant == tenant:
                yield _quota_row(quota, account)

    def _charges(
        self, request: page_table.PageRequest, month: billing_reader.MonthCharges
    ) -> TenantCharges:
        """Return the charges of a month with the budget then; without a month, the present budget."""
        tenant, timestamp_ns = request.parts["tenant"], self.api.views().timestamp_ns
        if month.period:
            timestamp_ns = min(timestamp_ns, month.period.end_ns - 1)
        budget = self.api.metrics.files.quotas.content.find_budget(tenant, timestamp_ns)
        details = month.details if request.tenant is None else ""
        return charges_row(month, tenant, budget, details or month.problem)

    def _holdings(self, request: page_table.PageRequest) -> TenantHoldings:
        tenant = request.parts["tenant"]
        jobs = [job for job in self.api.views().jobs.jobs if job.key.tenant == tenant]
        names_of = self.api.core.names_of_gpu
        places = [
            (place.holding.node, names_of(place.holding.node, place.gpu)["index"], place)
            for job in jobs
            for place in job.places
        ]
        places.sort(key=lambda each: (each[0], len(each[1]), each[1], each[2].gpu))
        shown, pages = page_table.split_page(places, request.query.page)
        rows = [
            HeldGpuRow(
                node,
                place.gpu,
                index,
                place.holding.job.source,
                place.holding.job.workload,
                str(Fraction(place.holding.units, claim_terms.GPU_CAPACITY)),
                place.holding.start_ns,
            )
            for node, index, place in shown
        ]
        largest = sorted(jobs, key=lambda job: -len(job.places))[:MAX_JOBS]
        jobs_shown = tuple(map(_job_row, largest))
        return TenantHoldings(jobs_shown, len(jobs), tuple(rows), len(places), pages)

    def _incidents(self, request: page_table.PageRequest) -> TenantIncidents:
        tenant = request.parts["tenant"]
        visible = incidents_api.visible_incidents(self.api.incidents(), request.credential)
        visible_parts = (each.of_tenant(tenant) for each in visible if each.is_open)
        touching = incidents_api.worst_first(each for each in visible_parts if each)
        rows = incident_pages.documents_of(touching[:MAX_INCIDENTS])
        return TenantIncidents(rows, len(touching))


def charges_row(
    month: billing_reader.MonthCharges, tenant: str, budget: Fraction | None, problem: str
) -> TenantCharges:
    """Return the charges of a tenant, rounded once as on an invoice, and the use of its budget."""
    places = charges.currency_exponent(month.currency) if month.currency else _UNKNOWN_PLACES
    row = TenantCharges(
        period=units.period_name(month.period) if month.period else "",
        last_day=timestamps.format_timestamp(month.last_day * timestamps.DAY_NS)[:10]
        if month.period
        else "",
        currency=month.currency,
        problem=problem,
        budget="" if budget is None else charges.format_decimal(budget, places),
        is_outdated=month.is_outdated,
    )
    if problem:
        return row
    exact = month.totals.get(tenant, Fraction(0))
    payable = Fraction(charges.to_minor(exact, places), 10**places)
    amount = charges.format_decimal(payable, places)
    if budget is None:
        return msgspec.structs.replace(row, amount=amount)
    used = charges.format_decimal(100 * exact / budget, _PERCENT_PLACES) if budget else ""
    remaining = charges.format_decimal(budget - payable, places)
    return msgspec.structs.replace(row, amount=amount, used_percent=used, remaining=remaining)


def _held_units(views: CollectorViews) -> dict[str, units.Units]:
    """Return what each tenant holds now, by the jobs."""
    by_tenant: dict[str, units.Units] = {}
    for job in views.jobs.jobs:
        amount = sum(place.holding.units for place in job.places)
        by_tenant[job.key.tenant] = units.exact(by_tenant.get(job.key.tenant, 0) + amount)
    by_tenant.pop("", None)
    return by_tenant


def _held_time(states: dict[tiling.SlotState, units.Units]) -> units.Units:
    return units.exact(sum(states.get(state, 0) for state in tiling.HELD_STATES))


def _job_row(job: RunningJob) -> TenantJobRow:
    gpus = Fraction(sum(place.holding.units for place in job.places), claim_terms.GPU_CAPACITY)
    nodes = len({place.holding.node for place in job.places})
    return TenantJobRow(job.key.source, job.key.workload, _decimal(gpus), nodes, job.start_ns)


def _quota_row(quota: Quota, account: account_sums.GpuTimeAccount) -> TenantQuotaRow:
    days = account_cells.quota_days(quota.period, account.until_ns)
    used = account.held_time(*days).get(quota.tenant, 0)
    limit, gpus = quota.gpu_hours, quota.gpus
    return TenantQuotaRow(
        quota.period,
        "" if limit is None else _decimal(limit),
        "" if limit is None else _gpu_hours(used),
        "" if gpus is None else _decimal(gpus),
    )


def _gpu_hours(time: units.Units) -> str:
    return charges.format_decimal(
        Fraction(time) / (claim_terms.GPU_CAPACITY * timestamps.HOUR_NS), _HOUR_PLACES
    )


def _decimal(amount: Fraction) -> str:
    """Return an amount without decimals if it has none."""
    return charges.format_decimal(amount, 0 if amount.denominator == 1 else _HOUR_PLACES)
