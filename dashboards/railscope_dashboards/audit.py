"""The dashboard of the audit log: whether it is complete, signed, and cosigned by witnesses."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question = "Is the audit log complete, signed and witnessed?"
    marks = (dashboard_parts.claim_marks(),)
    return dashboard_parts.assemble(
        "Audit",
        "railscope-audit",
        question,
        SECTIONS,
        console="/audit",
        marks=marks,
        tags=("audit",),
    )


def _sum(name: str) -> query.Query:
    return query.build_query(f"sum(railscope_audit_{name})")


def _grown(name: str) -> query.Query:
    return query.count_increase(f"railscope_audit_{name}_total")


def _rate(name: str) -> query.Query:
    return query.build_query(
        f"sum(rate(railscope_audit_{name}_total[$__rate_interval]))", query.EVENTS_PER_SECOND
    )


def _summary() -> Iterator[panels.Panel]:
    broken = (
        "max(railscope_audit_checkpoint_conflict) + max(railscope_ledger_replaced)"
        " + max(railscope_collector_lost_files)"
    )
    cosigned: panels.Steps = ((None, "red"), (1, "orange"), (3, "green"))
    yield from (
        panels.number(101, "Records", "In the log.", _sum("records")),
        panels.number(102, "Unsigned records", "Durable, without a signed checkpoint.", _sum("unsigned_records")),
        panels.number(103, "Conflicts, replaced, lost", "An agent holds a checkpoint that this log lacks, the ledger is an older copy, or files were lost.", query.build_query(broken), panels.NONE_IS_GOOD),
        panels.number(104, "Witnesses", "Nodes that have cosigned a checkpoint.", _sum("witnesses"), cosigned),
        panels.number(105, "Lost records", "In the last hour: could not be written.", _grown("lost_records"), panels.NONE_IS_GOOD),
        panels.number(106, "Requests denied", "In the last hour.", _grown("denials")),
        panels.number(107, "Waiting events", "Events of agents, not in the log yet.", _sum("waiting_events")),
        panels.number(108, "Events of earlier agents", "In the last hour: cannot be recorded.", _grown("unnumbered_events"), panels.NONE_IS_GOOD),
    )  # fmt: skip


def _log() -> Iterator[panels.Panel]:
    yield from (
        panels.lines(201, "Records", "A log only grows.", _sum("records"), span=12),
        panels.lines(202, "Unsigned records over time", "Returns to 0 with each checkpoint.", _sum("unsigned_records"), span=12),
        panels.lines(203, "Waiting for the log", "Events of agents, and changes of the ledger.",
                     _sum("waiting_events").with_name("events"),
                     _sum("outbox_waiting_records").with_name("changes to the ledger")),
        panels.bars(204, "Unrecorded events", "Lost, or permanently unrecordable.",
                    _rate("lost_records").with_name("could not be written"),
                    _rate("unnumbered_events").with_name("not numbered")),
        panels.bars(205, "Events read again", "Too many at once: they are read from the frame log.", _rate("overflowed_events")),
    )  # fmt: skip


def _integrity_panels() -> Iterator[panels.Panel]:
    state, records = (
        "railscope_agent_audit_witness_state",
        "railscope_agent_audit_checkpoint_records",
    )
    by_state = query.build_query(f"sum by (state) ({state})", legend="{{state}}")
    conflicts = query.build_query(f'max by (node) ({state}{{state="conflict"}}) == 1', query.COUNT)
    column = panels.Column("State", conflicts, panels.ANY_IS_BAD, {1: "conflict"}, "highest")
    yield from (
        panels.lines(301, "Witnesses", "Nodes that have cosigned a checkpoint.", _sum("witnesses")),
        panels.layers(302, "Agents by state of their checkpoint", "Conflict: the log lacks their checkpoint.", by_state),
        panels.lines(303, "Records covered by the checkpoints of agents", "The oldest and the newest checkpoint, and the log itself.",
                     query.build_query(f"min({records})").with_name("oldest"), query.build_query(f"max({records})").with_name("newest"), _sum("records").with_name("log")),
        panels.rows(304, "Agents with a checkpoint conflict", "Nothing is signed while there is one.", {"node": "Node"}, column),
        panels.bars(305, "Requests denied", "Requests without a sufficient credential.", _rate("denials"), span=12),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("Does every record reach the log, and is the log signed?", _log),
    ("Could it be changed undetected?", _integrity_panels),
)
