"""Metrics of the agent itself."""

# fmt: off
from railscope.catalog import declare, entities
from railscope.catalog.declare import BASIC, FULL, MICRO, NANO, EventClass, MetricTable, Rollup

PROCESS_START = "Counts from the start of the agent's process."
_AGENT = MetricTable(entities.NODE, resets=declare.AGENT_START)
_SOURCE = MetricTable(entities.SOURCE, resets=declare.AGENT_START)

SOURCE_STATES = {0: "starting", 1: "ok", 2: "partial", 3: "unsupported", 4: "failed"}
GOVERNOR_STATES = {0: "within", 1: "stretching", 2: "at_limit"}
SOURCE_STATE = _SOURCE.state("railscope_source_state", "State of a source: ok, partial (some readings fail), unsupported (not on this node) or failed.", "agent", states=SOURCE_STATES, detail=BASIC)
SOURCE_READ_TIME = _SOURCE.gauge("railscope_source_read_duration_seconds", "Duration of the last complete read of the source.", "agent", scale=NANO, detail=FULL)
SOURCE_AGE = _SOURCE.gauge("railscope_source_age_seconds", "Time since the last complete read of the source.", "agent", scale=NANO, detail=BASIC)
SOURCE_READ_AT = _SOURCE.gauge("railscope_source_read_timestamp_seconds", "Time at which the read of the source began that returned the exposed values, in seconds since 1970 (UTC). The rate of a counter between two scrapes is its increase divided by that of this time.", "agent", scale=NANO, detail=FULL)
SOURCE_READS = _SOURCE.counter("railscope_source_reads_total", "Complete reads of the source.", "agent", detail=FULL)
SOURCE_MISSED = _SOURCE.counter("railscope_source_missed_ticks_total", "Ticks at which the source could not be read because the read before had not returned.", "agent", detail=FULL)
SOURCE_CPU = _SOURCE.counter("railscope_source_cpu_seconds_total", "Processor time that the agent has used to read the source and to discover its devices.", "clock_gettime(CLOCK_THREAD_CPUTIME_ID)", scale=NANO, detail=FULL)
SOURCE_PERIOD = _SOURCE.gauge("railscope_source_period_seconds", "Time from one read of the source to the next, as the governor has set it.", "agent", scale=NANO, detail=FULL)
PERIOD_FACTOR = _SOURCE.gauge("railscope_source_stretch_ratio", "Period of the source in configured periods: more than 1 where the governor has lengthened it.", "agent", detail=FULL, valid=(0, 10**6))
SOURCE_ABSENT = _SOURCE.gauge("railscope_source_absent_readings", "Readings of the source that have no value now, by reason.", "agent", about=entities.ABSENCE, detail=BASIC, total=SOURCE_STATE)
HUNG_TIME = _AGENT.gauge("railscope_agent_hung_device_seconds", "Time since a call to a device that has not returned; the device has no values meanwhile.", "agent", about=entities.HUNG_DEVICE, scale=NANO, detail=BASIC)
AGENT_READS = _AGENT.counter("railscope_agent_reads_total", "Complete reads of all sources.", "agent, sum of railscope_source_reads_total")
AGENT_MISSED = _AGENT.counter("railscope_agent_missed_ticks_total", "Ticks at which a source could not be read because the read before had not returned, of all sources.", "agent, sum of railscope_source_missed_ticks_total", detail=BASIC)
AGENT_READ_CPU = _AGENT.counter("railscope_agent_read_cpu_seconds_total", "Processor time that the agent has used to read all sources and to discover their devices.", "agent, sum of railscope_source_cpu_seconds_total", scale=NANO)
AGENT_STRETCHED = _AGENT.gauge("railscope_agent_stretched_sources", "Sources whose period the governor has lengthened.", "agent, railscope_source_stretch_ratio above 1", detail=BASIC)
AGENT_CPU = _AGENT.counter("railscope_agent_cpu_seconds_total", "Processor time the agent has used.", "clock_gettime(CLOCK_PROCESS_CPUTIME_ID)", scale=NANO, detail=BASIC, resets=PROCESS_START)
AGENT_MEMORY = _AGENT.gauge("railscope_agent_resident_memory_bytes", "Memory the agent occupies.", "/proc/self/statm (pages)", rollups=(Rollup.MAX,), detail=BASIC)
AGENT_CPU_USE = _AGENT.gauge("railscope_agent_cpu_use_ratio", "Share of one processor core that the agent used over the last minute; the governor compares it with the budget.", "clock_gettime(CLOCK_PROCESS_CPUTIME_ID)", scale=MICRO, rollups=(Rollup.MAX,), detail=FULL, valid=(0, 10**4))
AGENT_CPU_BUDGET = _AGENT.gauge("railscope_agent_cpu_budget_ratio", "Limit of the agent's use of one processor core, which it keeps by reading less often.", "setting budget.cpu_ratio", scale=MICRO, valid=(0, 10**4))
AGENT_MEMORY_BUDGET = _AGENT.gauge("railscope_agent_memory_budget_bytes", "Resident memory above which the agent releases caches.", "setting budget.memory_bytes", detail=BASIC)
GOVERNOR_STATE = _AGENT.state("railscope_governor_state", "State of an agent budget: within it, within it by stretched periods (stretching), or exceeded (at_limit).", "agent", states=GOVERNOR_STATES, about=entities.BUDGET, detail=BASIC)
SPOOL_SIZE = _AGENT.gauge("railscope_spool_size_bytes", "Size of the frames that wait to be acknowledged by the collector.", "agent spool", rollups=(Rollup.MAX,), detail=BASIC)
SPOOL_BATCHES = _AGENT.gauge("railscope_spool_envelopes", "Envelopes of frames that wait to be acknowledged by the collector.", "agent spool")
UNSTORED_SIZE = _AGENT.gauge("railscope_spool_unstored_size_bytes", "Size of the frames in the spool that a collector has received, and whose evidence its shared database does not have yet.", "agent spool", rollups=(Rollup.MAX,))
UNSTORED_BATCHES = _AGENT.gauge("railscope_spool_unstored_envelopes", "Envelopes in the spool that a collector has received, and whose evidence its shared database does not have yet.", "agent spool")
UNSTORED_AGE = _AGENT.gauge("railscope_spool_unstored_age_seconds", "Time since the collector received the oldest envelope whose evidence its shared database does not have yet; absent if there is none.", "agent spool", scale=NANO, rollups=(Rollup.MAX,))
FRAMES_SHIPPED = _AGENT.counter("railscope_agent_shipped_frames_total", "Frames the collector has acknowledged as durable.", "agent")
LOG_LINES_LOST = _AGENT.counter("railscope_agent_log_lines_lost_total", "Log lines that could not be written: a full disk, a closed pipe.", "agent", resets=PROCESS_START)
FRAMES_DROPPED = _AGENT.counter("railscope_agent_dropped_frames_total", "Frames that the agent dropped, by reason; unstored: a collector had received them, and had not stored their evidence in its shared database.", "agent", about=entities.DROP, rollups=(Rollup.SUM,), detail=BASIC)
SHIP_FAILURES = _AGENT.counter("railscope_agent_ship_failures_total", "Attempts to reach the collector that failed.", "agent", detail=BASIC)
COLLECTOR_IN_USE = _AGENT.gauge("railscope_agent_collector_in_use", "1 for the collector that responded last, 0 for the others; absent if the agent has only one.", "agent", about=entities.COLLECTOR)
COLLECTOR_CHANGES = _AGENT.counter("railscope_agent_collector_changes_total", "Changes of the collector in use, by reason: failures, unacknowledged (no response in time), denied (status 401 or 403), draining (also: it waits, as another one of its group is active); absent if the agent has only one.", "agent", about=entities.COLLECTOR_CHANGE)
WITNESS_STATE = _AGENT.state("railscope_agent_audit_witness_state", "State of the collector's audit log as verified by this agent, the worst one of several collectors: conflict if it contradicts the checkpoint stored here.", "agent", states={0: "no_checkpoint", 1: "consistent", 2: "conflict"}, detail=BASIC)
WITNESSED_RECORDS = _AGENT.gauge("railscope_agent_audit_checkpoint_records", "Records of the collector's audit log that the checkpoint stored here covers; the sum of several collectors.", "agent", detail=BASIC)
CONFLICT_EVENT = EventClass("audit_checkpoint_conflict", entities.NODE, "error", "The collector's audit log contradicts the checkpoint that this agent has stored.", "agent", ("kind", "held_size", "held_root", "offered_size", "offered_root", "collector"), audited=True)
SOURCE_EVENT = EventClass("source_state", entities.SOURCE, "warning", "A source changed its state.", "agent", ("before", "after", "problem"), judged_by="RailscopeSourceFailing")
HANG_EVENT = EventClass("device_hang", entities.NODE, "error", "A call to a device has not returned and its thread was abandoned (hung), or it has returned.", "agent", ("device", "call", "for", "state"), judged_by="driver_unresponsive")
GOVERNOR_EVENT = EventClass("governor", entities.SOURCE, "warning", "The governor changed the period of a source, to keep the agent's budget, or because the budget allows a shorter one again.", "agent", ("before", "after", "why"), judged_by="RailscopeGovernorAtLimit")
GAP_EVENT = EventClass("gap", entities.DROP, "error", "The agent dropped frames that no collector received, or (unstored) whose evidence was not in the shared database yet.", "agent spool", ("frames", "envelopes"), audited=True)
