"""The dashboard of billing: whether all GPU time has an owner, and whether the amounts add up."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query

TIME = "railscope_cluster_gpu_time_seconds"
CAPACITY = "sum(railscope_cluster_gpu_capacity_seconds)"
LEFT_OVER = f"round({CAPACITY} - sum({TIME}), 0.001)"
"""Prometheus adds in floating point: differences below a millisecond are rounding."""
UNSEEN = f'sum({TIME}{{state=~"unknown|inferred"}})'
TENANT = {"tenant": "Tenant"}


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question = "Is every second of every GPU attributed, and does the account close?"
    return dashboard_parts.assemble(
        "Billing and reconciliation",
        "railscope-billing",
        question,
        SECTIONS,
        console="/billing",
        marks=(dashboard_parts.claim_marks(),),
        tags=("tenant", "billing"),
    )


def _total(name: str) -> query.Query:
    return query.build_query(f"sum(railscope_{name})")


def _rate(name: str) -> query.Query:
    counter = f"railscope_collector_{name}_total"
    return query.build_query(f"sum(rate({counter}[$__rate_interval]))", query.EVENTS_PER_SECOND)


def _summary() -> Iterator[panels.Panel]:
    valid = "railscope_collector_file_valid"
    around_zero: panels.Steps = ((None, "red"), (-0.001, "green"), (0.001, "red"))
    nearly_all: panels.Steps = ((None, "red"), (0.99, "orange"), (0.999, "green"))
    yield from (
        panels.number(101, "Difference", "Total GPU time less all states: 0 when the account closes.", query.build_query(LEFT_OVER), around_zero),
        panels.number(102, "Observed", "Share of GPU time with frames.", query.build_query(f"1 - {UNSEEN} / ({CAPACITY} > 0)", query.SHARE), nearly_all),
        panels.number(103, "Unknown", "GPU time without evidence so far.", query.build_query(f'sum({TIME}{{state="unknown"}})'), panels.ANY_IS_BAD),
        panels.number(104, "Used without a claim", "GPU time that has not been billed so far.", query.build_query(f'sum({TIME}{{state="unclaimed"}})'), panels.ANY_IS_BAD),
        panels.number(105, "Invalid files", "Invalid files among claims, tenants, calendar, quotas, retired, inventory and tokens.", query.build_query(f"count({valid}) - sum({valid})", query.COUNT), panels.NONE_IS_GOOD),
        panels.number(106, "Frames missing", "Gaps in the sequences of running agents; the frames may still arrive.", _total("collector_missing_frames"), panels.NONE_IS_GOOD),
        panels.number(107, "Not in the audit log", "Changes to the ledger that wait for it.", _total("audit_outbox_waiting_records")),
        panels.number(108, "Ledger failures", "Failures in the last hour.", query.count_increase("railscope_collector_ledger_failures_total"), panels.NONE_IS_GOOD),
    )  # fmt: skip


def _account() -> Iterator[panels.Panel]:
    rate = f"sum by (state) (deriv({TIME}[$__rate_interval]))"
    counted = panels.layers(
        201,
        "GPUs by state",
        "GPU time per second equals GPUs.",
        query.build_query(rate, query.COUNT, "{{state}}"),
        span=12,
    )
    yield panels.in_colours(counted, panels.COUNTED_AS)
    yield panels.lines(
        202,
        "Total and accounted GPU time",
        "The curves coincide when the account closes.",
        query.build_query(CAPACITY).with_name("capacity"),
        query.build_query(f"sum({TIME})").with_name("accounted"),
        span=12,
    )
    yield panels.lines(203, "Difference", "GPU time in no state.", query.build_query(LEFT_OVER))
    time, by_tenant = "railscope_tenant_gpu_time_seconds", "sum by (tenant)"
    yield panels.rows(
        204,
        "GPU time of tenants",
        "Since the first evidence. Observed: held, with samples.",
        TENANT,
        panels.Column("All", query.build_query(f"{by_tenant} ({time})"), worst="highest"),
        panels.Column("Observed", query.build_query(f'{by_tenant} ({time}{{state="observed"}})')),
        span=8,
    )
    held_rate = f'deriv({time}{{state=~"observed|inferred|unknown"}}[$__rate_interval])'
    yield panels.layers(
        205,
        "GPUs held by tenant",
        "GPU time per second, all held states.",
        query.build_query(f"{by_tenant} ({held_rate})", query.COUNT, "{{tenant}}"),
    )


def _money() -> Iterator[panels.Panel]:
    used = "sum by (tenant, period) (railscope_tenant_quota_used_gpu_time_seconds)"
    bound = "max by (tenant, period) (railscope_tenant_quota_gpu_time_seconds)"
    now = "sum by (tenant) (railscope_tenant_quota_used_gpus)"
    max_gpus = "max by (tenant) (railscope_tenant_quota_gpus)"
    for ident, title, about, keys, column, value, quota in (
        (301, "Quotas", "Of this day or month (UTC). Quotas are not enforced.", TENANT | {"period": "Period"}, "Used", used, bound),
        (302, "GPUs at once", "Held now, and the quota.", TENANT, "Held", now, max_gpus),
    ):  # fmt: skip
        share = query.build_query(f"{value} / ({quota} > 0)", query.SHARE)
        yield panels.rows(
            ident,
            title,
            about,
            keys,
            panels.Column(column, query.build_query(value)),
            panels.Column("Agreed", query.build_query(quota)),
            panels.Column("Share", share, panels.FULL, worst="highest"),
        )
    for ident, title, name in (
        (303, "Energy so far", "energy_joules"),
        (304, "Time computing so far", "gpu_busy_time_seconds"),
        (305, "Sent so far", "network_transmitted_bytes"),
    ):
        yield panels.lines(
            ident,
            title,
            "By tenant; some minutes old, and corrected by late evidence.",
            query.build_query(f"sum by (tenant) (railscope_tenant_{name})", legend="{{tenant}}"),
        )


def _ledger() -> Iterator[panels.Panel]:
    yield from (
        panels.lines(401, "Waiting, rejected and damaged evidence",
                     "Quarters of an hour of nodes that are not in the database yet, facts that it rejects, and damaged rows.",
                     _total("collector_evidence_pending_intervals").with_name("waiting"),
                     _total("collector_evidence_rejected_facts").with_name("rejected"),
                     _total("collector_evidence_damaged_rows").with_name("damaged")),
        panels.lines(402, "Evidence stored", "Quarters of an hour of nodes.", _rate("evidence_stored_intervals")),
        panels.lines(403, "Finalized GPU-days", "Computed again, and changed by late evidence.",
                     _rate("finalized_gpu_days").with_name("computed"), _rate("revised_gpu_days").with_name("revised")),
        panels.lines(404, "Claims", "Claims in force in the claims file.", _total("collector_claims").with_name("in force")),
        panels.lines(405, "Rejected claims", "In events of agents.", _rate("rejected_claims"), steps=panels.ANY_IS_BAD),
    )  # fmt: skip
    valid = query.build_query("min by (file) (railscope_collector_file_valid)")
    yield panels.rows(
        406,
        "Administrators' files",
        "While a file is invalid, its previous version stays in force.",
        {"file": "File"},
        panels.Column("Valid", valid, panels.ALL_IS_GOOD, {0: "no", 1: "yes"}, "lowest"),
        span=8,
    )


SECTIONS = (
    ("", _summary),
    ("Does the account close?", _account),
    ("How much of its quota has each tenant used?", _money),
    ("Does evidence reach the ledger?", _ledger),
)
