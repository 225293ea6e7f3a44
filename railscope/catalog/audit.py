"""Metrics of the collector's audit log."""

from railscope.catalog.declare import Kind, Metric, Unit
from railscope.catalog.entities import CLUSTER

START = "Counts from the start of the collector."

AUDIT_RECORDS = Metric(
    "railscope_audit_records",
    Kind.GAUGE,
    CLUSTER,
    help="Records in the audit log.",
    origin="audit log",
)
AUDIT_UNSIGNED = Metric(
    "railscope_audit_unsigned_records",
    Kind.GAUGE,
    CLUSTER,
    help="Records of the audit log that are durable but under no signed checkpoint yet.",
    origin="audit log",
)
AUDIT_LOST = Metric(
    "railscope_audit_lost_records_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Records that could not be written to the audit log.",
    origin="audit log",
)
DENIALS = Metric(
    "railscope_audit_denials_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Requests that were turned away for want of the right credential.",
    origin="collector",
)
AUDIT_WAITING = Metric(
    "railscope_audit_waiting_events",
    Kind.GAUGE,
    CLUSTER,
    help="Events of agents that are not in the audit log yet.",
    origin="collector",
)
AUDIT_OVERFLOWED = Metric(
    "railscope_audit_overflowed_events_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Events of agents that were too many at once for the audit log, and were read again from the frame log.",
    origin="collector",
)
AUDIT_UNNUMBERED = Metric(
    "railscope_audit_unnumbered_events_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Events that could not be recorded because an old agent does not number them.",
    origin="collector",
)
OUTBOX_WAITING = Metric(
    "railscope_audit_outbox_waiting_records",
    Kind.GAUGE,
    CLUSTER,
    help="Records of changes to the ledger that are not in the audit log yet.",
    origin="ledger",
)
LEDGER_REPLACED = Metric(
    "railscope_ledger_replaced",
    Kind.GAUGE,
    CLUSTER,
    help="Whether the ledger's database is an older copy, or another one, than the audit log has recorded (1), so that nothing is finalized or billed, or not (0).",
    origin="heads of the ledger in the audit log",
)
AUDIT_DISPUTED = Metric(
    "railscope_audit_log_disputed",
    Kind.GAUGE,
    CLUSTER,
    help="Whether an agent holds a checkpoint that the audit log has never had (1), so that nothing is signed, or not (0).",
    origin="checkpoints that agents hold",
)
AUDIT_VERIFIED = Metric(
    "railscope_audit_verified",
    Kind.GAUGE,
    CLUSTER,
    help="Whether the collector's last reading of its whole audit log found what was signed (1) or not (0).",
    origin="as railscope audit verify",
)
AUDIT_VERIFIED_AGE = Metric(
    "railscope_audit_verification_age_seconds",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.SECONDS,
    help="Age of the last reading of the whole audit log that found what was signed.",
    origin="as railscope audit verify",
)
AUDIT_WITNESSES = Metric(
    "railscope_audit_witnesses",
    Kind.GAUGE,
    CLUSTER,
    help="Nodes that have cosigned a checkpoint of the audit log.",
    origin="cosignatures of agents",
)
