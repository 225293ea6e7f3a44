"""What the collector tells about the fleet, the tenants and itself."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Unit, per
from railscope.catalog.entities import (
    ADMINISTRATORS_FILE,
    CLUSTER,
    FLEET_NODE,
    GPU_TIME_STATE,
    REJECTION,
    TENANT,
    TENANT_PERIOD,
    TENANT_STATE,
)

START = "Counts from the start of the collector."
LEDGER = "Counts from the first evidence; late evidence moves time from unknown to observed."
STATES = (
    "observed (held and seen), inferred (held, not seen), idle (free and seen), reserved, stranded (a "
    "rest that MIG cannot use), system, maintenance, down, rogue (used without a claim), unknown"
)
COUNTED = "Counts from the first evidence; a few minutes behind, and late evidence corrects it."
NANOSECOND = per(10**9)

NODES = Metric(
    "railscope_cluster_nodes",
    Kind.GAUGE,
    CLUSTER,
    help="Nodes the collector has ever heard of, but for silent ones that the inventory has no more.",
    origin="collector",
)
NODES_UP = Metric(
    "railscope_cluster_nodes_reporting",
    Kind.GAUGE,
    CLUSTER,
    help="Nodes whose frames are fresh.",
    origin="collector",
)
CLUSTER_GPUS = Metric(
    "railscope_cluster_gpus",
    Kind.GAUGE,
    CLUSTER,
    help="GPUs of the nodes whose frames are fresh.",
    origin="collector",
)
NODE_UP = Metric(
    "railscope_node_reporting",
    Kind.GAUGE,
    FLEET_NODE,
    help="Whether frames of the node are fresh (1) or it is silent (0).",
    origin="collector",
)
NODE_AGE = Metric(
    "railscope_node_last_frame_age_seconds",
    Kind.GAUGE,
    FLEET_NODE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="Time since the instant of the newest frame of the node.",
    origin="collector",
)
NODE_CLOCK_OFFSET = Metric(
    "railscope_node_clock_offset_seconds",
    Kind.GAUGE,
    FLEET_NODE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="How far the node's clock ran ahead of the collector's when it sent its last frames; "
    "network delay counts as running behind.",
    origin="collector, time of sending against time of arrival",
)
GPU_TIME = Metric(
    "railscope_cluster_gpu_time_seconds",
    Kind.GAUGE,
    GPU_TIME_STATE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help=f"GPU time by state so far: {STATES}.",
    origin="claims, administrators' files and frames of the GPU source",
)
GPU_CAPACITY = Metric(
    "railscope_cluster_gpu_capacity_seconds",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time there was: every known GPU from its first evidence to now, or until it retired.",
    origin="frames of the GPU source, retired file",
)
TENANT_GPU_TIME = Metric(
    "railscope_tenant_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_STATE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time of a tenant by state; the states are those of railscope_cluster_gpu_time_seconds.",
    origin="claims, administrators' files and frames of the GPU source",
)
TENANT_ENERGY = Metric(
    "railscope_tenant_energy_joules",
    Kind.GAUGE,
    TENANT,
    unit=Unit.JOULES,
    scale=per(1000),
    resets=COUNTED,
    help="Energy that GPUs used while the tenant held them.",
    origin="railscope_gpu_energy_joules_total, by claims",
)
TENANT_BUSY = Metric(
    "railscope_tenant_gpu_busy_time_seconds",
    Kind.GAUGE,
    TENANT,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=COUNTED,
    help="Time in which GPUs computed while the tenant held them.",
    origin="railscope_gpu_busy_seconds_total, by claims",
)
TENANT_MEMORY = Metric(
    "railscope_tenant_gpu_memory_used_byte_seconds",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTE_SECONDS,
    scale=Fraction(1024),
    resets=COUNTED,
    help="GPU memory in use times time, while the tenant held the GPUs.",
    origin="railscope_gpu_memory_used_byte_seconds_total, by claims",
)
TENANT_RECEIVED = Metric(
    "railscope_tenant_network_received_bytes",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTES,
    resets=COUNTED,
    help="Bytes received by the ports on the rails of GPUs while the tenant held them.",
    origin="railscope_rdma_receive_bytes_total, else railscope_nic_receive_bytes_total, by claims",
)
TENANT_TRANSMITTED = Metric(
    "railscope_tenant_network_transmitted_bytes",
    Kind.GAUGE,
    TENANT,
    unit=Unit.BYTES,
    resets=COUNTED,
    help="Bytes sent by the ports on the rails of GPUs while the tenant held them.",
    origin="railscope_rdma_transmit_bytes_total, else railscope_nic_transmit_bytes_total, by claims",
)
TENANT_GPUS = Metric(
    "railscope_tenant_held_gpus",
    Kind.GAUGE,
    TENANT,
    scale=per(840),
    help="GPUs that the tenant holds now; parts of a GPU count as parts.",
    origin="claims",
)
QUOTA_TIME = Metric(
    "railscope_tenant_quota_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_PERIOD,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="GPU time that the tenant may hold in the present day or month (UTC).",
    origin="quotas file",
)
QUOTA_TIME_USED = Metric(
    "railscope_tenant_quota_used_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_PERIOD,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="GPU time that the tenant has held in the present day or month (UTC).",
    origin="claims and frames of the GPU source",
)
QUOTA_GPUS = Metric(
    "railscope_tenant_quota_gpus",
    Kind.GAUGE,
    TENANT,
    help="GPUs that the tenant may hold at once.",
    origin="quotas file",
)
ENVELOPES = Metric(
    "railscope_collector_received_envelopes_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Envelopes of frames accepted from agents.",
    origin="collector",
)
FRAMES = Metric(
    "railscope_collector_received_frames_total",
    Kind.COUNTER,
    CLUSTER,
    unit=Unit.FRAMES,
    resets=START,
    help="Frames accepted, counted once each.",
    origin="collector",
)
DUPLICATES = Metric(
    "railscope_collector_duplicate_frames_total",
    Kind.COUNTER,
    CLUSTER,
    unit=Unit.FRAMES,
    resets=START,
    help="Frames received again and left out.",
    origin="collector",
)
MISSING = Metric(
    "railscope_collector_missing_frames",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.FRAMES,
    help="Frames inside the sequence of a running agent that never arrived.",
    origin="collector",
)
VALUES = Metric(
    "railscope_collector_received_values_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Values in the accepted frames.",
    origin="collector",
)
RECEIVED_BYTES = Metric(
    "railscope_collector_received_bytes_total",
    Kind.COUNTER,
    CLUSTER,
    unit=Unit.BYTES,
    resets=START,
    help="Bytes of the accepted envelopes as they came over the wire.",
    origin="collector",
)
REJECTED = Metric(
    "railscope_collector_rejected_envelopes_total",
    Kind.COUNTER,
    REJECTION,
    resets=START,
    help="Envelopes refused, by reason.",
    origin="collector",
)
COMMITS = Metric(
    "railscope_collector_frame_log_commits_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Groups of envelopes made durable in the frame log.",
    origin="collector",
)
COMMIT_TIME = Metric(
    "railscope_collector_frame_log_commit_seconds_total",
    Kind.COUNTER,
    CLUSTER,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=START,
    help="Time spent making envelopes durable.",
    origin="collector, write and fdatasync",
)
LOG_SIZE = Metric(
    "railscope_collector_frame_log_size_bytes",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.BYTES,
    help="Size of the frame log on disk.",
    origin="collector",
)
VIEWS_TIME = Metric(
    "railscope_collector_views_refresh_seconds",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="Time the last refresh of all views took.",
    origin="collector",
)
CLAIMS = Metric(
    "railscope_collector_claims",
    Kind.GAUGE,
    CLUSTER,
    help="Claims in force in the claims file that was read last without an error.",
    origin="claims file",
)
FILE_VALID = Metric(
    "railscope_collector_file_valid",
    Kind.GAUGE,
    ADMINISTRATORS_FILE,
    help="Whether a file that administrators write could be read the last time it changed (1) or not (0).",
    origin="claims, tenants, calendar, quotas, retired, inventory and tokens file",
)
EVIDENCE_WAITING = Metric(
    "railscope_collector_evidence_waiting_parts",
    Kind.GAUGE,
    CLUSTER,
    help="Quarters of an hour of nodes whose evidence is in memory and not in the database.",
    origin="collector",
)
EVIDENCE_STORED = Metric(
    "railscope_collector_evidence_stored_parts_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Quarters of an hour of nodes whose evidence went to the database.",
    origin="collector",
)
EVIDENCE_FAILURES = Metric(
    "railscope_collector_ledger_failures_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Rounds of storing evidence and settling days that the database did not allow.",
    origin="collector",
)
CLAIMS_REFUSED = Metric(
    "railscope_collector_refused_claims_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Claims in events of agents that could not be understood.",
    origin="collector",
)
SETTLED_DAYS = Metric(
    "railscope_collector_settled_gpu_days_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Days of GPUs that were worked out for the ledger, those that were unchanged among them.",
    origin="collector",
)
REVISED_DAYS = Metric(
    "railscope_collector_revised_gpu_days_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Days of GPUs in the ledger whose GPU time late evidence has changed.",
    origin="collector",
)
SINK_DROPPED = Metric(
    "railscope_collector_influx_dropped_lines_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Lines that were given up because the InfluxDB server was away for too long.",
    origin="collector",
)
SINK_WRITTEN = Metric(
    "railscope_collector_influx_written_lines_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Lines the InfluxDB server accepted.",
    origin="collector",
)
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
