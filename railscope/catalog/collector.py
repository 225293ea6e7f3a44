"""The collector: fleet, ingest, evidence, audit log, inventory."""

# fmt: off
from railscope.catalog.declare import NANO, MetricTable
from railscope.catalog.entities import (
    ADMINISTRATORS_FILE,
    CLUSTER,
    FLEET_GPU,
    FLEET_NODE,
    INVENTORY_NODE,
    INVENTORY_STATE,
    REJECTION,
)

START = "Counts from the start of the collector."
_COLLECTOR = MetricTable(CLUSTER, resets=START)
_NODE = MetricTable(FLEET_NODE)
_INVENTORY = MetricTable(INVENTORY_NODE)

NODES = _COLLECTOR.gauge("railscope_cluster_nodes", "Nodes that have ever reported to the collector, without stale ones whose row in the inventory has ended.", "collector")
NODES_UP = _COLLECTOR.gauge("railscope_cluster_nodes_reporting", "Nodes whose frames are fresh.", "collector")
CLUSTER_GPUS = _COLLECTOR.gauge("railscope_cluster_gpus", "GPUs of the nodes whose frames are fresh.", "collector")
NODE_UP = _NODE.gauge("railscope_node_reporting", "Whether frames of the node are fresh (1) or the node is stale (0).", "collector")
NODE_AGE = _NODE.gauge("railscope_node_last_frame_age_seconds", "Time since the timestamp of the newest frame of the node.", "collector", scale=NANO)
NODE_CLOCK_OFFSET = _NODE.gauge("railscope_node_clock_offset_seconds", "How far the node's clock ran ahead of the collector's when it sent its last frames; network delay counts as running behind.", "collector, time of sending against time of arrival", scale=NANO)
ENVELOPES = _COLLECTOR.counter("railscope_collector_received_envelopes_total", "Envelopes of frames accepted from agents.", "collector")
FRAMES = _COLLECTOR.counter("railscope_collector_received_frames_total", "Frames accepted, counted once each.", "collector")
DUPLICATES = _COLLECTOR.counter("railscope_collector_duplicate_frames_total", "Frames received again and left out.", "collector")
MISSING = _COLLECTOR.gauge("railscope_collector_missing_frames", "Frames of an agent that never arrived: inside its sequence, or at the end of an earlier run. A node counts for at most 10^9.", "collector")
MISSING_OF_NODE = _NODE.gauge("railscope_node_missing_frames", "The same of one node that has missing frames.", "collector")
RUN_ENDS_IGNORED = _COLLECTOR.counter("railscope_collector_ignored_run_ends_total", "Stated last sequences of an earlier run's streams that were not accepted: no frame of the stream was received (stream), it is more than 129,600,000 frames beyond the last received one (distance), it contradicts an earlier statement (repeated).", "collector", about=REJECTION)
VALUES = _COLLECTOR.counter("railscope_collector_received_values_total", "Values in the accepted frames.", "collector")
RECEIVED_BYTES = _COLLECTOR.counter("railscope_collector_received_bytes_total", "Bytes of the accepted envelopes as received.", "collector")
REJECTED = _COLLECTOR.counter("railscope_collector_rejected_envelopes_total", "Envelopes rejected, by reason.", "collector", about=REJECTION)
NODE_TWINS = _NODE.gauge("railscope_node_identity_conflict", "1 if two senders used the name and token of this node within the last hour.", "collector, boots and runs that go on beside each other")
UNPLACED_GPUS = _NODE.gauge("railscope_node_unplaced_gpus", "GPUs that claims without devices request now and that the node does not have left; claims that wait for a person are not counted.", "collector, placement of claims")
QUARANTINED = _COLLECTOR.gauge("railscope_collector_quarantined_records", "Records of the frame log that a restart left out and kept aside in `quarantine`.", "collector")
SCHEMAS = _COLLECTOR.gauge("railscope_collector_schemas", "Schemas of frames that are known; those that nothing refers to are released.", "collector")
CONNECTIONS = _COLLECTOR.gauge("railscope_collector_connections", "Open connections of clients.", "collector")
CONNECTIONS_CLOSED = _COLLECTOR.counter("railscope_collector_closed_connections_total", "Connections that the collector ended or did not accept: no request arrived in time (timeout), others took precedence (evicted), all were busy (busy), no file descriptor was left (descriptors).", "collector", about=REJECTION)
COMMITS = _COLLECTOR.counter("railscope_collector_frame_log_commits_total", "Groups of envelopes made durable in the frame log.", "collector")
COMMIT_TIME = _COLLECTOR.counter("railscope_collector_frame_log_commit_seconds_total", "Time spent making envelopes durable.", "collector, write and fdatasync", scale=NANO)
LOG_SIZE = _COLLECTOR.gauge("railscope_collector_frame_log_size_bytes", "Size of the frame log on disk.", "collector")
LOST_FILES = _COLLECTOR.gauge("railscope_collector_lost_files", "Files of the state directory that are missing, damaged or shorter than they were: segments, schemas, the checkpoint, the clock.", "manifest of the frame log")
DAMAGED_EVIDENCE = _COLLECTOR.gauge("railscope_collector_evidence_damaged_rows", "Rows of the evidence that do not read back from the database; what they stated counts as not seen.", "ledger")
LOG_LINES_SUPPRESSED = _COLLECTOR.counter("railscope_collector_log_lines_suppressed_total", "Log lines that were not written because the same one had been written within a minute; the next line of its kind has their number.", "collector")
VIEWS_TIME = _COLLECTOR.gauge("railscope_collector_views_refresh_seconds", "Time the last refresh of all views took.", "collector", scale=NANO)
CLAIMS = _COLLECTOR.gauge("railscope_collector_claims", "Claims in force in the claims file that was read last without an error.", "claims file")
FILE_VALID = _COLLECTOR.gauge("railscope_collector_file_valid", "Whether a file that administrators write could be read the last time it changed (1) or not (0).", "claims, tenants, calendar, quotas, retired, inventory and tokens file", about=ADMINISTRATORS_FILE)
EVIDENCE_WAITING = _COLLECTOR.gauge("railscope_collector_evidence_pending_intervals", "15-minute intervals of nodes whose evidence is in memory and not yet in the database.", "collector")
EVIDENCE_STORED = _COLLECTOR.counter("railscope_collector_evidence_stored_intervals_total", "15-minute intervals of nodes whose evidence was written to the database.", "collector")
EVIDENCE_FAILURES = _COLLECTOR.counter("railscope_collector_ledger_failures_total", "Attempts to store evidence or finalize days that failed in the database.", "collector")
CLAIMS_REJECTED = _COLLECTOR.counter("railscope_collector_rejected_claims_total", "Invalid claims in events of agents.", "collector")
EVIDENCE_TOO_OLD = _COLLECTOR.counter("railscope_collector_evidence_too_old_frames_total", "Frames more than 72 hours old on arrival: acknowledged, but not used as evidence.", "collector")
EVIDENCE_EXCESS_GPUS = _COLLECTOR.counter("railscope_collector_evidence_excess_gpus_total", "Batches with a GPU beyond the 256 that a node may report; it is not used as evidence.", "collector")
EVIDENCE_EXCESS_SPANS = _COLLECTOR.counter("railscope_collector_evidence_excess_spans_total", "Stretches of samples beyond those kept in memory of a GPU (4096) or a node (65,536); they are not used as evidence.", "collector")
EVIDENCE_SUPPRESSED = _COLLECTOR.counter("railscope_collector_evidence_suppressed_problems_total", "Problems of the evidence that were neither logged nor recorded, because the node already had as many of the kind as are reported individually.", "collector")
FINALIZED_DAYS = _COLLECTOR.counter("railscope_collector_finalized_gpu_days_total", "GPU-days computed for the ledger, including unchanged ones.", "collector")
REVISED_DAYS = _COLLECTOR.counter("railscope_collector_revised_gpu_days_total", "GPU-days in the ledger whose GPU time was changed by late evidence.", "collector")
CLOCK_SUSPECT = _COLLECTOR.gauge("railscope_collector_clock_suspect", "1 while the collector's wall clock is suspect or unconfirmed: nothing is finalized or closed.", "collector")
LOG_LINES_LOST = _COLLECTOR.counter("railscope_collector_log_lines_lost_total", "Log lines that could not be written: a full disk, a closed pipe.", "collector")
SINK_DROPPED = _COLLECTOR.counter("railscope_collector_influx_dropped_lines_total", "Lines dropped because the InfluxDB server was unreachable for too long.", "collector")
SINK_WRITTEN = _COLLECTOR.counter("railscope_collector_influx_written_lines_total", "Lines the InfluxDB server accepted.", "collector")

# Audit log ---------------------------------------------------------------------------------------
AUDIT_RECORDS = _COLLECTOR.gauge("railscope_audit_records", "Records in the audit log.", "audit log")
AUDIT_UNSIGNED = _COLLECTOR.gauge("railscope_audit_unsigned_records", "Records of the audit log that are durable but under no signed checkpoint yet.", "audit log")
AUDIT_LOST = _COLLECTOR.counter("railscope_audit_lost_records_total", "Records that could not be written to the audit log.", "audit log")
DENIALS = _COLLECTOR.counter("railscope_audit_denials_total", "Requests denied for lack of the right credential.", "collector")
AUDIT_WAITING = _COLLECTOR.gauge("railscope_audit_waiting_events", "Events of agents that are not in the audit log yet.", "collector")
AUDIT_OVERFLOWED = _COLLECTOR.counter("railscope_audit_overflowed_events_total", "Events of agents that were too many at once for the audit log, and were read again from the frame log.", "collector")
AUDIT_UNNUMBERED = _COLLECTOR.counter("railscope_audit_unnumbered_events_total", "Events that could not be recorded because an old agent does not number them.", "collector")
OUTBOX_WAITING = _COLLECTOR.gauge("railscope_audit_outbox_waiting_records", "Records of changes to the ledger that are not in the audit log yet.", "ledger")
LEDGER_REPLACED = _COLLECTOR.gauge("railscope_ledger_replaced", "Whether the ledger's database is an older copy, or another one, than the audit log has recorded (1), so that nothing is finalized or billed, or not (0).", "heads of the ledger in the audit log")
AUDIT_DISPUTED = _COLLECTOR.gauge("railscope_audit_log_disputed", "Whether an agent holds a checkpoint that the audit log has never had (1), so that nothing is signed, or not (0).", "checkpoints that agents hold")
AUDIT_VERIFIED = _COLLECTOR.gauge("railscope_audit_verified", "Whether the collector's last reading of its whole audit log found what was signed (1) or not (0).", "as railscope audit verify")
AUDIT_VERIFIED_AGE = _COLLECTOR.gauge("railscope_audit_verification_age_seconds", "Age of the last reading of the whole audit log that found what was signed.", "as railscope audit verify")
AUDIT_WITNESSES = _COLLECTOR.gauge("railscope_audit_witnesses", "Nodes that have cosigned a checkpoint of the audit log.", "cosignatures of agents")

# Inventory ---------------------------------------------------------------------------------------
DEVICES = (
    "present, missing and unknown (of a stale node, or without any answer) add up to what the "
    "inventory states; unexpected are those beyond it"
)
INVENTORY_NODE_STATE = _INVENTORY.gauge("railscope_inventory_node", "Whether a node is present, stale, missing (in the inventory, but it has never reported) or unexpected (it reports and is not in the inventory); 1 for the state it is in.", "inventory file, frames")
INVENTORY_NODES = _COLLECTOR.gauge("railscope_inventory_nodes", "Nodes in each state of railscope_inventory_node.", "inventory file, frames", about=INVENTORY_STATE)
INVENTORY_GPUS = _INVENTORY.gauge("railscope_inventory_gpus", f"GPUs of a node that is in the inventory, by state: {DEVICES}.", "inventory file, frames of the GPU source")
INVENTORY_RDMA_PORTS = _INVENTORY.gauge("railscope_inventory_rdma_ports", f"RDMA ports of a node that is in the inventory, by state: {DEVICES}.", "inventory file, frames of the RDMA source")
GONE_GPU_AGE = _COLLECTOR.gauge("railscope_gone_gpu_age_seconds", "Time since the last sample of a GPU that its node reported before and no node reports now; its time is unknown in the account until it is back or retired.", "frames of the GPU source, retired file", about=FLEET_GPU, scale=NANO)
RETIRED_GPU_REPORTING = _COLLECTOR.gauge("railscope_retired_gpu_reporting", "Whether a retired GPU still reports (1) or not (0); it has no capacity in the account. The node is the one that reports it, or its last one.", "frames of the GPU source, retired file", about=FLEET_GPU)
