"""Model of the page of a tenant: GPUs held now, jobs, incidents, account, quotas, budget, statements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from http import HTTPStatus

import msgspec

from railscope import service, timestamps
from railscope.api import billing, tenants
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.account import account_cells, account_sums
from railscope_collector.billing import billing_reader, charges
from railscope_collector.console import billing_pages, page_table
from railscope_collector.files.quotas_file import Quota
from railscope_collector.http import ResourceError, gpus_api, incidents_api, read_api
from railscope_collector.http.resource_server import ResourceRequest
from railscope_collector.metering import units
from railscope_collector.metering.slot_state import MEANINGS

MAX_JOBS, MAX_INCIDENTS, MAX_STATEMENTS = 20, 10, 24
_PERCENT_PLACES = 1
_UNKNOWN_PLACES = 2
"""Decimals of a budget while its currency is unknown."""


@dataclass(slots=True)
class TenantPages:
    """Models from the views, and from the books for statements."""

    api: read_api.ViewApi
    books: billing_pages.BillingPages

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"tenant": self._tenant}

    async def _tenant(self, request: page_table.PageRequest) -> page_table.PageContent:
        model = await service.run_in_thread(self._make_tenant, request)
        if request.allows("statements"):
            try:
                issued = await self.books.issued(request, model.tenant)
                month = await self.books.month_charges(request)
                statements, problem = tuple(issued[:MAX_STATEMENTS]), ""
            except ResourceError as error:
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
        has_jobs = any(job.key.tenant == model.tenant for job in self.api.views().jobs.jobs)
        if not (is_listed or is_charged or has_jobs or request.tenant):
            text = f"unknown tenant {model.tenant[:40]!r}: expected one of the list"
            raise ResourceError(HTTPStatus.NOT_FOUND, text)
        return page_table.PageContent(model, {"meanings": MEANINGS})

    def _make_tenant(self, request: page_table.PageRequest) -> tenants.TenantDetail:
        views, tenant = self.api.views(), request.parts["tenant"]
        account, reader = views.account, Credential("", Role.TENANT, tenant)
        sums = account.tenants().get(tenant, {}) if account else {}
        jobs, gpus, incidents = None, None, None
        if request.allows("jobs"):
            asked = ResourceRequest(reader, query=incidents_api.JobsQuery(limit=MAX_JOBS))
            jobs = self.api.jobs_api.job_list(asked)
            query = gpus_api.GpusQuery(
                limit=request.query.limit, offset=request.query.offset, sort="node"
            )
            gpus = self.api.gpus.select(reader, query)
        if request.allows("incidents"):
            incidents = self.api.listed_incidents.select(
                reader, lambda each: each.is_open, slice(MAX_INCIDENTS)
            )
        return tenants.TenantDetail(
            timestamp_ns=views.timestamp_ns,
            tenant=tenant,
            until_ns=account.until_ns if account else None,
            held_gpu_hours=read_api.held_gpu_hours(sums) if account else None,
            gpu_hours={
                state.value: float(time / units.GPU_HOUR) for state, time in sorted(sums.items())
            },
            quotas=tuple(self._quotas(tenant, account)) if account else (),
            jobs=jobs,
            gpus=gpus,
            incidents=incidents,
        )

    def _quotas(
        self, tenant: str, account: account_sums.GpuTimeAccount
    ) -> Iterator[tenants.TenantQuota]:
        for quota in self.api.metrics.files.quotas.content.in_force(account.until_ns):
            if quota.tenant == tenant:
                yield _quota_row(quota, account)

    def _charges(
        self, request: page_table.PageRequest, month: billing_reader.MonthCharges
    ) -> billing.MonthCharges:
        """Return the charges of a month with the budget then; without a month, the present budget."""
        tenant, timestamp_ns = request.parts["tenant"], self.api.views().timestamp_ns
        if month.period:
            timestamp_ns = min(timestamp_ns, month.period.end_ns - 1)
        budget = self.api.metrics.files.quotas.content.find_budget(tenant, timestamp_ns)
        details = month.details if request.tenant is None else ""
        return charges_row(month, tenant, budget, details or month.problem)


def charges_row(
    month: billing_reader.MonthCharges, tenant: str, budget: Fraction | None, problem: str
) -> billing.MonthCharges:
    """Return the charges of a tenant, rounded once as on an invoice, and the use of its budget."""
    places = charges.currency_exponent(month.currency) if month.currency else _UNKNOWN_PLACES
    row = billing.MonthCharges(
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


def _quota_row(quota: Quota, account: account_sums.GpuTimeAccount) -> tenants.TenantQuota:
    days = account_cells.quota_days(quota.period, account.until_ns)
    used = account.held_time(*days).get(quota.tenant, 0)
    limit, gpus = quota.gpu_hours, quota.gpus
    return tenants.TenantQuota(
        quota.period,
        None if limit is None else float(limit),
        None if limit is None else float(used / units.GPU_HOUR),
        None if gpus is None else float(gpus),
    )
