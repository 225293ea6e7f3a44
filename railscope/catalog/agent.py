"""Metrics of the agent itself."""

# fmt: off
from railscope.catalog.declare import BASIC, FULL, MICRO, NANO, EventClass, MetricTable, Rollup
from railscope.catalog.entities import ABSENCE, BUDGET, DROP, HUNG_DEVICE, NODE, SOURCE

START = "Counts from the start of the agent."
_AGENT = MetricTable(NODE, resets=START)
_SOURCE = MetricTable(SOURCE, resets=START)

SOURCE_STATES = {0: "starting", 1: "ok", 2: "partial", 3: "unsupported", 4: "failed"}
GOVERNOR_STATES = {0: "within", 1: "stretching", 2: "at_limit"}
SOURCE_STATE = _SOURCE.state("railscope_source_state", "State of a source: ok, partial (some readings fail), unsupported (not on this node) or failed.", "agent", states=SOURCE_STATES, detail=BASIC)
SOURCE_READ_TIME = _SOURCE.gauge("railscope_source_read_duration_seconds", "Duration of the last complete read of the source.", "agent", scale=NANO, detail=FULL)
SOURCE_AGE = _SOURCE.gauge("railscope_source_age_seconds", "Time since the last complete read of the source.", "agent", scale=NANO, detail=BASIC)
SOURCE_READS = _SOURCE.counter("railscope_source_reads_total", "Complete reads of the source.", "agent", detail=FULL)
SOURCE_MISSED = _SOURCE.counter("railscope_source_missed_ticks_total", "Ticks at which the source could not be read because the read before had not returned.", "agent", detail=FULL)
SOURCE_CPU = _SOURCE.counter("railscope_source_cpu_seconds_total", "Processor time that the agent has used to read the source and to discover its devices.", "clock_gettime(CLOCK_THREAD_CPUTIME_ID)", scale=NANO, detail=FULL)
SOURCE_PERIOD = _SOURCE.gauge("railscope_source_period_seconds", "Time from one read of the source to the next, as the governor has set it.", "agent", scale=NANO, detail=FULL)
PERIOD_FACTOR = _SOURCE.gauge("railscope_source_stretch_ratio", "Period of the source in configured periods: more than 1 where the governor has lengthened it.", "agent", detail=FULL)
SOURCE_ABSENT = _SOURCE.gauge("railscope_source_absent_readings", "Readings of the source that have no value now, by reason.", "agent", about=ABSENCE, detail=BASIC, total=SOURCE_STATE)
HUNG_TIME = _AGENT.gauge("railscope_agent_hung_device_seconds", "Time since a call to a device that has not returned; the device has no values meanwhile.", "agent", about=HUNG_DEVICE, scale=NANO, detail=BASIC)
AGENT_READS = _AGENT.counter("railscope_agent_reads_total", "Complete reads of all sources.", "agent, sum of railscope_source_reads_total")
AGENT_MISSED = _AGENT.counter("railscope_agent_missed_ticks_total", "Ticks at which a source could not be read because the read before had not returned, of all sources.", "agent, sum of railscope_source_missed_ticks_total", detail=BASIC)
AGENT_READ_CPU = _AGENT.counter("railscope_agent_read_cpu_seconds_total", "Processor time that the agent has used to read all sources and to discover their devices.", "agent, sum of railscope_source_cpu_seconds_total", scale=NANO)
AGENT_STRETCHED = _AGENT.gauge("railscope_agent_stretched_sources", "Sources whose period the governor has lengthened.", "agent, railscope_source_stretch_ratio above 1", detail=BASIC)
AGENT_CPU = _AGENT.counter("railscope_agent_cpu_seconds_total", "Processor time the agent has used.", "clock_gettime(CLOCK_PROCESS_CPUTIME_ID)", scale=NANO, detail=BASIC)
AGENT_MEMORY = _AGENT.gauge("railscope_agent_resident_memory_bytes", "Memory the agent occupies.", "/proc/self/statm (pages)", rollups=(Rollup.MAX,), detail=BASIC)
REPLAY_CPU = _AGENT.counter("railscope_agent_replay_cpu_seconds_total", "Processor time for decoding a capture or simulating a node; not part of the agent's own.", "clock_gettime(CLOCK_THREAD_CPUTIME_ID)", scale=NANO)
REPLAY_MEMORY = _AGENT.gauge("railscope_agent_replay_resident_memory_bytes", "Memory that a capture or a simulated node occupied when it was loaded; not part of the agent's own.", "/proc/self/statm (pages)")
AGENT_CPU_USE = _AGENT.gauge("railscope_agent_cpu_use_ratio", "Share of one processor core that the agent used over the last minute; the governor compares it with the budget.", "clock_gettime(CLOCK_PROCESS_CPUTIME_ID)", scale=MICRO, rollups=(Rollup.MAX,), detail=FULL)
AGENT_CPU_BUDGET = _AGENT.gauge("railscope_agent_cpu_budget_ratio", "Limit of the agent's use of one processor core, which it keeps by reading less often.", "setting budget.cpu_ratio", scale=MICRO)
AGENT_MEMORY_BUDGET = _AGENT.gauge("railscope_agent_memory_budget_bytes", "Resident memory above which the agent releases caches.", "setting budget.memory_bytes", detail=BASIC)
GOVERNOR_STATE = _AGENT.state("railscope_governor_state", "State of an agent budget: within it, within it by stretched periods (stretching), or exceeded (at_limit).", "agent", states=GOVERNOR_STATES, about=BUDGET, detail=BASIC)
SPOOL_SIZE = _AGENT.gauge("railscope_spool_size_bytes", "Size of the frames that wait to be acknowledged by the collector.", "agent spool", rollups=(Rollup.MAX,), detail=BASIC)
SPOOL_BATCHES = _AGENT.gauge("railscope_spool_envelopes", "Envelopes of frames that wait to be acknowledged by the collector.", "agent spool")
FRAMES_SHIPPED = _AGENT.counter("railscope_agent_shipped_frames_total", "Frames the collector has acknowledged as durable.", "agent")
LOG_LINES_LOST = _AGENT.counter("railscope_agent_log_lines_lost_total", "Log lines that could not be written: a full disk, a closed pipe.", "agent")
FRAMES_DROPPED = _AGENT.counter("railscope_agent_dropped_frames_total", "Frames dropped before the collector received them, by reason.", "agent", about=DROP, rollups=(Rollup.SUM,), detail=BASIC)
SHIP_FAILURES = _AGENT.counter("railscope_agent_ship_failures_total", "Attempts to reach the collector that failed.", "agent", detail=BASIC)
WITNESS_STATE = _AGENT.state("railscope_agent_audit_witness_state", "State of the collector's audit log as verified by this agent: conflict if it contradicts the checkpoint stored here.", "agent", states={0: "no_checkpoint", 1: "consistent", 2: "conflict"}, detail=BASIC)
WITNESSED_RECORDS = _AGENT.gauge("railscope_agent_audit_checkpoint_records", "Records of the collector's audit log that the checkpoint stored here covers.", "agent", detail=BASIC)
CONFLICT_EVENT = EventClass("audit_checkpoint_conflict", NODE, "error", "The collector's audit log contradicts the checkpoint that this agent has stored.", "agent", ("kind", "held_size", "held_root", "offered_size", "offered_root"), audited=True)
SOURCE_EVENT = EventClass("source_state", SOURCE, "warning", "A source changed its state.", "agent", ("before", "after", "problem"))
HANG_EVENT = EventClass("device_hang", NODE, "error", "A call to a device has not returned and its thread was abandoned (hung), or it has returned.", "agent", ("device", "call", "for", "state"))
GOVERNOR_EVENT = EventClass("governor", SOURCE, "warning", "The governor changed the period of a source, to keep the agent's budget, or because the budget allows a shorter one again.", "agent", ("before", "after", "why"))
GAP_EVENT = EventClass("gap", DROP, "error", "The agent dropped frames before the collector received them.", "agent spool", ("frames", "envelopes"), audited=True)
