"""What the collector tells about the fleet, the tenants and itself."""

from railscope.catalog.declare import Kind, Metric, Unit, per
from railscope.catalog.entities import (
    CLUSTER,
    FLEET_NODE,
    GPU_TIME_STATE,
    REJECTION,
    TENANT_STATE,
)

START = "Counts from the start of the collector."
LEDGER = "Counts from the first evidence; late evidence moves time from unknown to observed."
NANOSECOND = per(10**9)

NODES = Metric(
    "railscope_cluster_nodes",
    Kind.GAUGE,
    CLUSTER,
    help="Nodes the collector has ever heard of and still keeps.",
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
    help="GPU time by state so far: held by a tenant, idle (free and observed) or unknown (free and not observed).",
    origin="claims and frames of the GPU source",
)
GPU_CAPACITY = Metric(
    "railscope_cluster_gpu_capacity_seconds",
    Kind.GAUGE,
    CLUSTER,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time there was: every known GPU from its first evidence to now.",
    origin="frames of the GPU source",
)
TENANT_GPU_TIME = Metric(
    "railscope_tenant_gpu_time_seconds",
    Kind.GAUGE,
    TENANT_STATE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=LEDGER,
    help="GPU time a tenant held, by whether the GPU was observed or unknown meanwhile.",
    origin="claims and frames of the GPU source",
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
CLAIMS_VALID = Metric(
    "railscope_collector_claims_file_valid",
    Kind.GAUGE,
    CLUSTER,
    help="Whether the claims file could be read the last time it changed (1) or not (0).",
    origin="claims file",
)
TOKENS_VALID = Metric(
    "railscope_collector_tokens_file_valid",
    Kind.GAUGE,
    CLUSTER,
    help="Whether the tokens file could be read the last time it changed (1) or the one before is in force (0).",
    origin="tokens file",
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
