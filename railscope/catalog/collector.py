"""Metrics of the collector itself, and of the fleet as a whole."""

from railscope.catalog.declare import Kind, Metric, Unit, per
from railscope.catalog.entities import ADMINISTRATORS_FILE, CLUSTER, FLEET_NODE, REJECTION

START = "Counts from the start of the collector."
NANOSECOND = per(10**9)

NODES = Metric(
    "railscope_cluster_nodes",
    Kind.GAUGE,
    CLUSTER,
    help="Nodes that have ever reported to the collector, without stale ones whose row in the inventory has ended.",
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
    help="Whether frames of the node are fresh (1) or the node is stale (0).",
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
    help="Frames of an agent that never arrived: inside its sequence, or at the end of an earlier run. "
    "A node counts for at most 10^9.",
    origin="collector",
)
MISSING_OF_NODE = Metric(
    "railscope_node_missing_frames",
    Kind.GAUGE,
    FLEET_NODE,
    unit=Unit.FRAMES,
    help="The same of one node that has missing frames.",
    origin="collector",
)
RUN_ENDS_IGNORED = Metric(
    "railscope_collector_ignored_run_ends_total",
    Kind.COUNTER,
    REJECTION,
    resets=START,
    help="Stated last sequences of an earlier run's streams that were not accepted: no frame of the stream "
    "was received (stream), it is more than 129,600,000 frames beyond the last received one (distance), it "
    "contradicts an earlier statement (repeated).",
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
    help="Envelopes rejected, by reason.",
    origin="collector",
)
NODE_TWINS = Metric(
    "railscope_node_identity_conflict",
    Kind.GAUGE,
    FLEET_NODE,
    help="1 if two senders used the name and token of this node within the last hour.",
    origin="collector, boots and runs that go on beside each other",
)
UNPLACED_GPUS = Metric(
    "railscope_node_unplaced_gpus",
    Kind.GAUGE,
    FLEET_NODE,
    help=(
        "GPUs that claims without devices request now and that the node does not have left; claims that "
        "wait for a person are not counted."
    ),
    origin="collector, placement of claims",
)
QUARANTINED = Metric(
    "railscope_collector_quarantined_records",
    Kind.GAUGE,
    CLUSTER,
    help="Records of the frame log that a restart left out and kept aside in `quarantine`.",
    origin="collector",
)
SCHEMAS = Metric(
    "railscope_collector_schemas",
    Kind.GAUGE,
    CLUSTER,
    help="Schemas of frames that are known; those that nothing refers to are released.",
    origin="collector",
)
CONNECTIONS = Metric(
    "railscope_collector_connections",
    Kind.GAUGE,
    CLUSTER,
    help="Open connections of clients.",
    origin="collector",
)
CONNECTIONS_CLOSED = Metric(
    "railscope_collector_closed_connections_total",
    Kind.COUNTER,
    REJECTION,
    resets=START,
    help="Connections that the collector ended or did not accept: no request came in time (timeout), "
    "others needed the room (evicted), all were busy (busy), no file descriptor was left (descriptors).",
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
LOST_FILES = Metric(
    "railscope_collector_lost_files",
    Kind.GAUGE,
    CLUSTER,
    help="Files of the state directory that are missing, damaged or shorter than they were: segments, schemas, "
    "the checkpoint, the clock.",
    origin="manifest of the frame log",
)
DAMAGED_EVIDENCE = Metric(
    "railscope_collector_evidence_damaged_rows",
    Kind.GAUGE,
    CLUSTER,
    help="Rows of the evidence that do not read back from the database; what they stated counts as not seen.",
    origin="ledger",
)
LOG_LINES_SUPPRESSED = Metric(
    "railscope_collector_log_lines_suppressed_total",
    Kind.COUNTER,
    CLUSTER,
    help="Log lines that were not written because the same one had been written within a minute; the "
    "next line of its kind has their number.",
    resets=START,
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
    "railscope_collector_evidence_pending_intervals",
    Kind.GAUGE,
    CLUSTER,
    help="15-minute intervals of nodes whose evidence is in memory and not yet in the database.",
    origin="collector",
)
EVIDENCE_STORED = Metric(
    "railscope_collector_evidence_stored_intervals_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="15-minute intervals of nodes whose evidence was written to the database.",
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
CLAIMS_REJECTED = Metric(
    "railscope_collector_rejected_claims_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Invalid claims in events of agents.",
    origin="collector",
)
EVIDENCE_TOO_OLD = Metric(
    "railscope_collector_evidence_too_old_frames_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Frames more than 72 hours old on arrival: acknowledged, but not used as evidence.",
    origin="collector",
)
EVIDENCE_EXCESS_GPUS = Metric(
    "railscope_collector_evidence_excess_gpus_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Batches with a GPU beyond the 256 that a node may ever report; it is not evidence.",
    origin="collector",
)
EVIDENCE_EXCESS_SPANS = Metric(
    "railscope_collector_evidence_excess_spans_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Stretches of samples beyond those kept in memory of a GPU (4096) or a node (65,536); they are no evidence.",
    origin="collector",
)
FINALIZED_DAYS = Metric(
    "railscope_collector_finalized_gpu_days_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="GPU-days computed for the ledger, including unchanged ones.",
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
CLOCK_SUSPECT = Metric(
    "railscope_collector_clock_suspect",
    Kind.GAUGE,
    CLUSTER,
    help="1 while the collector's wall clock is suspect or unconfirmed: nothing is finalized or closed.",
    origin="collector",
)
LOG_LINES_LOST = Metric(
    "railscope_collector_log_lines_lost_total",
    Kind.COUNTER,
    CLUSTER,
    resets=START,
    help="Log lines that could not be written: a full disk, a closed pipe.",
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
