"""Collectives of jobs: ranks by PyTorch's flight recorders and by NCCL's RAS subsystem, and times by NCCL Inspector."""

# fmt: off
from railscope.catalog import declare, entities

_DUMPS = "dumps of PyTorch's flight recorder"
_RANK = declare.MetricTable(entities.COLLECTIVE_RANK, _DUMPS, detail=declare.BASIC)
RANK_STATES = {0: "unknown", 1: "running", 2: "waiting", 3: "late", 4: "mismatched", 5: "stuck"}
FILE_STATES = ("read", "waiting", "owner", "outdated", "malformed", "too_large", "irregular", "unreadable", "excess")
"""`waiting` is read later; `owner`: no process of the owner is on a GPU of this node."""

FLIGHT_RECORDER_FILES = _RANK.gauge("railscope_flight_recorder_files", "Dumps of flight recorders in the configured directory, by what the agent did with them.", about=entities.FLIGHT_RECORDER_FILE)
COLLECTIVE_RANKS = _RANK.gauge("railscope_collective_ranks", "Ranks of process groups by state; a rank of several groups counts in each. A rank without a usable dump is unknown.", about=entities.COLLECTIVE_STATE)
RANK_INFO = _RANK.info("railscope_collective_rank_info", "Identity of this rank: process, GPU, NIC, rail, holder of the GPU, and the collective that it has not entered or not completed.")
RANK_STATE = _RANK.state("railscope_collective_rank_state", "State of the rank in its process group as of its dump: late if other ranks wait in a collective that it has not entered, mismatched if it entered another one, stuck if all ranks entered and none completed it.", states=RANK_STATES)
RANK_WAIT = _RANK.gauge("railscope_collective_rank_wait_seconds", "Time for which the rank, or the first rank that waits for a late one, had waited as of its dump.", scale=declare.NANO)
RANK_ENQUEUED = _RANK.gauge("railscope_collective_rank_enqueued", "Sequence number of the last collective that the rank entered.", ", pg_status last_enqueued_collective")
RANK_COMPLETED = _RANK.gauge("railscope_collective_rank_completed", "Sequence number of the last collective that the rank completed.", ", pg_status last_completed_collective")
HOLDER = ("source", "workload", "owner", "tenant")
_FACTS = ("collective", "sequence", "shapes", "types", "stack", "waited_seconds", "waiting_ranks", "description")
_PLACE = ("pid", "gpu", "gpu_index", "interface", "rdma_device", "rail", *HOLDER)
LATE_EVENT = declare.EventClass("collective_late", entities.COLLECTIVE_RANK, "error", "A rank has not entered a collective in which other ranks of its process group wait.", _DUMPS, (*_FACTS, "last_collective", "last_sequence", "last_stack", "waits_in", *_PLACE), judged_by="nccl_hang")
MISMATCH_EVENT = declare.EventClass("collective_mismatch", entities.COLLECTIVE_RANK, "error", "A rank entered a collective of another kind, shape or type than the other ranks of its process group.", _DUMPS, (*_FACTS, *_PLACE), judged_by="nccl_hang")
STUCK_EVENT = declare.EventClass("collective_stuck", entities.COLLECTIVE_GROUP, "error", "All ranks of a process group entered a collective, and it did not complete.", _DUMPS, (*_FACTS, *HOLDER), judged_by="nccl_hang")
WAIT_EVENT = declare.EventClass("collective_waiting", entities.COLLECTIVE_GROUP, "warning", "Ranks of this node wait in a collective, and the rank that they wait for is not known here.", _DUMPS, (*_FACTS, *HOLDER), judged_by="nccl_hang")

_LOGS = "logs of NCCL Inspector"
_FROM_FIRST_LINE = "Counts from the first line that the agent read."
_LOG = declare.MetricTable(entities.NODE, _LOGS, declare.AGENT_START, detail=declare.BASIC)
_CALL = declare.MetricTable(entities.COMMUNICATOR_CALL, _LOGS, _FROM_FIRST_LINE, detail=declare.BASIC)
_ARRIVAL = declare.MetricTable(entities.COMMUNICATOR_RANK, f"{_LOGS}, coll_exec_time_us of kernel_gpu", _FROM_FIRST_LINE, detail=declare.BASIC)
INSPECTOR_FILE_STATES = ("read", "owner", "irregular", "unreadable", "excess")
"""`owner`: not exactly one process of the owner and of its job on a GPU of this node has the number in the name."""
INSPECTOR_LINE_STATES = ("read", "malformed", "unsupported", "headless", "too_long", "conflict", "excess")
"""`headless`: the communicator is not known; `conflict`: another process has the rank; `excess`: beyond the bounds."""

INSPECTOR_FILES = _LOG.gauge("railscope_nccl_inspector_files", "Files of NCCL Inspector in the configured directory, by what the agent did with them.", about=entities.INSPECTOR_FILE)
INSPECTOR_LINES = _LOG.counter("railscope_nccl_inspector_lines_total", "Lines of NCCL Inspector's logs, by what the agent did with them.", about=entities.INSPECTOR_LINE)
INSPECTOR_SKIPPED = _LOG.counter("railscope_nccl_inspector_skipped_bytes_total", "Bytes of logs that were not read: they grew faster than the agent reads, or were replaced or removed before.")
INSPECTOR_WAITING = _LOG.gauge("railscope_nccl_inspector_waiting_bytes", "Bytes of logs that are read later.")
INSPECTOR_REPLACED = _LOG.counter("railscope_nccl_inspector_replaced_logs_total", "Logs that were truncated, overwritten or replaced, and are read from their start again.")
INSPECTOR_DROPPED = _LOG.counter("railscope_nccl_inspector_dropped_calls_total", "Calls that the plugin did not record because its buffer was full; formats before 4.2 do not report them.", ", coll_dropped_since_last_dump + p2p_dropped_since_last_dump")
COMMUNICATOR_CALLS = _CALL.counter("railscope_nccl_calls_total", "Collectives and point-to-point operations that ranks of this node completed; each rank counts.")
COMMUNICATOR_BYTES = _CALL.counter("railscope_nccl_message_bytes_total", "Sizes of the messages of these calls.", ", coll_msg_size_bytes")
COMMUNICATOR_SECONDS = _CALL.counter("railscope_nccl_call_seconds_total", "Durations of these calls; waits for the last rank are part of them.", ", coll_exec_time_us", scale=declare.NANO)
COMMUNICATOR_BUS_BYTES = _CALL.counter("railscope_nccl_bus_bytes_total", "Bus bandwidth of these calls times their durations: divided by the durations, the mean bus bandwidth.", ", coll_busbw_gbs")
COMMUNICATOR_RANK_INFO = _ARRIVAL.info("railscope_communicator_rank_info", "Identity of this rank of a communicator: process, GPU, NIC, rail, holder of the GPU.")
RANK_COMPARED = _ARRIVAL.counter("railscope_nccl_rank_compared_calls_total", "Collectives in which the rank was compared with other ranks of this node.")
RANK_LAST = _ARRIVAL.counter("railscope_nccl_rank_last_arrivals_total", "Compared collectives at which the rank arrived last of the ranks of this node: its time was the shortest.")
RANK_SECONDS = _ARRIVAL.counter("railscope_nccl_rank_compared_seconds_total", "Durations of the compared collectives on this rank.", scale=declare.NANO)
RANK_LATE = _ARRIVAL.counter("railscope_nccl_rank_late_seconds_total", "Time by which the rank arrived after the first rank of this node, over all compared collectives.", scale=declare.NANO)
STRAGGLER_EVENT = declare.EventClass("collective_straggler", entities.COMMUNICATOR_RANK, "warning", "A rank arrives last at nearly all collectives of its communicator on this node, late by a large part of their duration.", _LOGS, ("communicator_name", "compared", "last_arrivals", "late_milliseconds", "late_percent", *_PLACE), judged_by="gpu_straggler")
SLOW_PATH_EVENT = declare.EventClass("collective_slow_path", entities.COMMUNICATOR_CALL, "warning", "The bus bandwidth of a communicator, for one kind and size class, is far below its usual one or that of the other communicators of its job with as many ranks; no rank of this node is late.", _LOGS, ("communicator_name", "bytes_per_second", "expected_bytes_per_second", "percent", "rails", "gpus", *HOLDER), judged_by="job_slowdown")

_RAS = "NCCL's RAS subsystem"
_NCCL = declare.MetricTable(entities.NCCL_RANK, _RAS, detail=declare.BASIC)
NCCL_RANK_STATES = {0: "unknown", 1: "running", 2: "waiting", 3: "late", 4: "mismatched", 5: "missing", 6: "dead", 7: "failed"}
NCCL_PROCESS_STATES = ("answered", "young", "other_node", "version", "denied", "namespace", "user", "unreachable", "protocol", "timeout", "too_large", "malformed", "excess")
"""All but `answered` are reasons why ranks are unknown."""

NCCL_PROCESSES = _NCCL.gauge("railscope_nccl_ras_processes", "Processes on GPUs of this node that have loaded NCCL, by what is known from its RAS subsystem: answered, or the reason why their job is not known.", about=entities.NCCL_PROCESS_STATE)
NCCL_RANKS = _NCCL.gauge("railscope_nccl_ras_ranks", "Ranks of communicators by state, over all nodes of the jobs whose rank 0 is on this node; a rank of several communicators counts in each.", about=entities.NCCL_RANK_STATE)
NCCL_DAMAGED = _NCCL.gauge("railscope_nccl_ras_damaged_communicators", "Communicators that were left out of the last reports because they are not valid; the states of their ranks are not known.", about=entities.NODE)
NCCL_RANK_INFO = _NCCL.info("railscope_nccl_ras_rank_info", "Identity of this rank: address of its node as NCCL reports it, and for a rank of this node process, GPU, NIC, rail and holder of the GPU.")
NCCL_STATE = _NCCL.state("railscope_nccl_ras_rank_state", "State of the rank in its communicator: late if it launched fewer collectives than other ranks and none of them made progress, missing if its process did not respond.", states=NCCL_RANK_STATES)
NCCL_LAUNCHED = _NCCL.gauge("railscope_nccl_ras_rank_launched", "Collectives that the host launched in this communicator, without those in CUDA graphs and point-to-point operations.", ", collective_counts")
NCCL_LAG = _NCCL.gauge("railscope_nccl_ras_rank_lag", "Collectives by which the rank is behind the first rank of its communicator.")
NCCL_UNCHANGED = _NCCL.gauge("railscope_nccl_ras_rank_unchanged_seconds", "Time for which no rank of the communicator has launched a collective.", scale=declare.NANO)
_NCCL_FACTS = ("host", "size", "collective", "launched", "lag", "late_ranks", "waiting_ranks", "waited_seconds", "waits_in", "detail", *_PLACE)
NCCL_LATE_EVENT = declare.EventClass("nccl_rank_late", entities.NCCL_RANK, "error", "A rank has launched fewer collectives than other ranks of its communicator, and none of them makes progress.", _RAS, _NCCL_FACTS, judged_by="nccl_hang")
NCCL_MISMATCH_EVENT = declare.EventClass("nccl_rank_mismatch", entities.NCCL_RANK, "error", "Ranks of a communicator launched collectives of different kinds, and none of them makes progress.", _RAS, _NCCL_FACTS, judged_by="nccl_hang")
NCCL_MISSING_EVENT = declare.EventClass("nccl_rank_missing", entities.NCCL_RANK, "warning", "The process of a rank did not respond to the RAS subsystem of its job.", _RAS, _NCCL_FACTS, judged_by="nccl_hang")
NCCL_DEAD_EVENT = declare.EventClass("nccl_rank_dead", entities.NCCL_RANK, "error", "The process of a rank is considered dead by the other ranks.", _RAS, _NCCL_FACTS, judged_by="nccl_hang")
NCCL_FAILED_EVENT = declare.EventClass("nccl_rank_failed", entities.NCCL_RANK, "error", "The communicator of a rank has an error, or was aborted.", _RAS, _NCCL_FACTS, judged_by="nccl_hang")
NCCL_PEER_EVENT = declare.EventClass("nccl_process_dead", entities.NCCL_JOB, "error", "A process of a job is considered dead by the other processes.", _RAS, ("host", "detail", *_PLACE), judged_by="nccl_hang")
