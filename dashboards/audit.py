"""The dashboard of the audit log: whether it is complete, signed, and cosigned by witnesses."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.dashboard_parts import assemble, claim_marks
from dashboards.query import COUNT, EVENTS_PER_SECOND, Query, ask, grown

UID = "railscope-audit"
QUESTION = "Is the audit log complete, signed and witnessed?"
HELD = "railscope_agent_audit_checkpoint_records"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble("Audit", UID, QUESTION, SECTIONS, marks=(claim_marks(),), tags=("audit",))


def _sum(name: str) -> Query:
    return ask(f"sum(railscope_audit_{name})")


def _grown(name: str) -> Query:
    return grown(f"railscope_audit_{name}_total")


def _rate(name: str) -> Query:
    return ask(f"sum(rate(railscope_audit_{name}_total[$__rate_interval]))", EVENTS_PER_SECOND)


def _summary() -> Iterator[panels.Panel]:
    yield panels.number(101, "Records", "In the log.", _sum("records"))
    yield panels.number(
        102, "Not signed yet", "Durable, without a signed checkpoint.", _sum("unsigned_records")
    )
    yield panels.number(
        103,
        "Disputed, replaced, lost",
        "An agent holds a checkpoint that this log lacks, the ledger is an older copy, or files were lost.",
        ask(
            "max(railscope_audit_log_disputed) + max(railscope_ledger_replaced)"
            " + max(railscope_collector_lost_files)"
        ),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        104,
        "Witnesses",
        "Nodes that have cosigned a checkpoint.",
        _sum("witnesses"),
        ((None, "red"), (1, "orange"), (3, "green")),
    )
    yield panels.number(
        105,
        "Lost records",
        "In the last hour: could not be written.",
        _grown("lost_records"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(106, "Requests denied", "In the last hour.", _grown("denials"))
    yield panels.number(
        107, "Waiting events", "Events of agents, not in the log yet.", _sum("waiting_events")
    )
    yield panels.number(
        108,
        "Events of earlier agents",
        "In the last hour: cannot be recorded.",
        _grown("unnumbered_events"),
        panels.NONE_IS_GOOD,
    )


def _log() -> Iterator[panels.Panel]:
    yield panels.lines(201, "Records", "A log only grows.", _sum("records"), span=12)
    yield panels.lines(
        202,
        "Records not signed yet",
        "Returns to 0 with each checkpoint.",
        _sum("unsigned_records"),
        span=12,
    )
    yield panels.lines(
        203,
        "Waiting for the log",
        "Events of agents, and changes of the ledger.",
        _sum("waiting_events").named("events"),
        _sum("outbox_waiting_records").named("changes to the ledger"),
    )
    yield panels.bars(
        204,
        "Not in the log",
        "Lost, or permanently unrecordable.",
        _rate("lost_records").named("could not be written"),
        _rate("unnumbered_events").named("not numbered"),
    )
    yield panels.bars(
        205,
        "Events read again",
        "Too many at once: they are read from the frame log.",
        _rate("overflowed_events"),
    )


def _others() -> Iterator[panels.Panel]:
    yield panels.lines(
        301, "Witnesses", "Nodes that have cosigned a checkpoint.", _sum("witnesses")
    )
    yield panels.layers(
        302,
        "Agents by state of their checkpoint",
        "Disputed: the log lacks their checkpoint.",
        ask("sum by (state) (railscope_agent_audit_witness_state)", legend="{{state}}"),
    )
    yield panels.lines(
        303,
        "Records covered by the checkpoints of agents",
        "The oldest and the newest checkpoint, and the log itself.",
        ask(f"min({HELD})").named("oldest"),
        ask(f"max({HELD})").named("newest"),
        _sum("records").named("log"),
    )
    disputed = 'max by (node) (railscope_agent_audit_witness_state{state="disputed"}) == 1'
    yield panels.rows(
        304,
        "Agents that dispute the log",
        "Nothing is signed while there is one.",
        {"node": "Node"},
        panels.Column("Is", ask(disputed, COUNT), panels.ANY_IS_BAD, {1: "disputed"}, "highest"),
    )
    yield panels.bars(
        305,
        "Requests denied",
        "Requests without a sufficient credential.",
        _rate("denials"),
        span=12,
    )


SECTIONS = (
    ("", _summary),
    ("Does every record reach the log, and is the log signed?", _log),
    ("Could it be changed undetected?", _others),
)
