"""Collectives of jobs: ranks of process groups, as PyTorch's flight recorders recorded them."""

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
_FACTS = ("collective", "sequence", "shapes", "types", "stack", "waited_seconds", "waiting_ranks", "description")
_PLACE = ("pid", "gpu", "gpu_index", "interface", "rdma_device", "rail", "source", "workload", "owner", "tenant")
LATE_EVENT = declare.EventClass("collective_late", entities.COLLECTIVE_RANK, "error", "A rank has not entered a collective in which other ranks of its process group wait.", _DUMPS, (*_FACTS, "last_collective", "last_sequence", "last_stack", "waits_in", *_PLACE))
MISMATCH_EVENT = declare.EventClass("collective_mismatch", entities.COLLECTIVE_RANK, "error", "A rank entered a collective of another kind, shape or type than the other ranks of its process group.", _DUMPS, (*_FACTS, *_PLACE))
STUCK_EVENT = declare.EventClass("collective_stuck", entities.COLLECTIVE_GROUP, "error", "All ranks of a process group entered a collective, and it did not complete.", _DUMPS, _FACTS)
WAIT_EVENT = declare.EventClass("collective_waiting", entities.COLLECTIVE_GROUP, "warning", "Ranks of this node wait in a collective, and the rank that they wait for is not known here.", _DUMPS, _FACTS)
