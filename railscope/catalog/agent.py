"""Metrics of the agent itself."""

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import ABSENCE, BUDGET, DROP, HUNG_DEVICE, NODE, SOURCE

START = "Counts from the start of the agent."
NANOSECOND = per(10**9)
MILLIONTH = per(10**6)
SOURCE_STATES = {0: "starting", 1: "ok", 2: "partial", 3: "unsupported", 4: "failed"}
GOVERNOR_STATES = {0: "within", 1: "stretching", 2: "at_limit"}

SOURCE_STATE = Metric(
    "railscope_source_state",
    Kind.STATE,
    SOURCE,
    states=SOURCE_STATES,
    help="How a source fares: ok, partial (some readings fail), unsupported (not on this machine) or failed.",
    origin="agent",
)
SOURCE_READ_TIME = Metric(
    "railscope_source_read_duration_seconds",
    Kind.GAUGE,
    SOURCE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    rollups=(Rollup.MAX,),
    help="How long the last complete read of the source took.",
    origin="agent",
)
SOURCE_AGE = Metric(
    "railscope_source_age_seconds",
    Kind.GAUGE,
    SOURCE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    rollups=(Rollup.MAX,),
    help="Time since the last complete read of the source.",
    origin="agent",
)
SOURCE_READS = Metric(
    "railscope_source_reads_total",
    Kind.COUNTER,
    SOURCE,
    resets=START,
    help="Complete reads of the source.",
    origin="agent",
)
SOURCE_MISSED = Metric(
    "railscope_source_missed_ticks_total",
    Kind.COUNTER,
    SOURCE,
    rollups=(Rollup.SUM,),
    resets=START,
    help="Ticks at which the source could not be read because the read before had not returned.",
    origin="agent",
)
SOURCE_CPU = Metric(
    "railscope_source_cpu_seconds_total",
    Kind.COUNTER,
    SOURCE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    rollups=(Rollup.MAX,),
    resets=START,
    help="Processor time the agent has used to read the source and to look for what is there.",
    origin="clock_gettime(CLOCK_THREAD_CPUTIME_ID)",
)
SOURCE_PERIOD = Metric(
    "railscope_source_period_seconds",
    Kind.GAUGE,
    SOURCE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    help="Time from one read of the source to the next, as the governor has set it.",
    origin="agent",
)
SOURCE_STRETCH = Metric(
    "railscope_source_stretch_ratio",
    Kind.GAUGE,
    SOURCE,
    unit=Unit.RATIO,
    rollups=(Rollup.MAX,),
    help="Period of the source in configured periods: more than 1 where the governor has lengthened it.",
    origin="agent",
)
SOURCE_ABSENT = Metric(
    "railscope_source_absent_readings",
    Kind.GAUGE,
    ABSENCE,
    rollups=(Rollup.SUM,),
    help="Readings of the source that have no value now, by reason.",
    origin="agent",
)
HUNG_TIME = Metric(
    "railscope_agent_hung_device_seconds",
    Kind.GAUGE,
    HUNG_DEVICE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    rollups=(Rollup.MAX,),
    help="Time for which a call about a device has not returned; the device has no values meanwhile.",
    origin="agent",
)
AGENT_CPU = Metric(
    "railscope_agent_cpu_seconds_total",
    Kind.COUNTER,
    NODE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    rollups=(Rollup.MEAN, Rollup.MAX),
    resets=START,
    help="Processor time the agent has used.",
    origin="clock_gettime(CLOCK_PROCESS_CPUTIME_ID)",
)
AGENT_MEMORY = Metric(
    "railscope_agent_resident_memory_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.MAX,),
    help="Memory the agent occupies.",
    origin="/proc/self/statm (pages)",
)
REPLAY_CPU = Metric(
    "railscope_agent_replay_cpu_seconds_total",
    Kind.COUNTER,
    NODE,
    unit=Unit.SECONDS,
    scale=NANOSECOND,
    resets=START,
    help="Processor time for decoding a capture or simulating a node; not part of the agent's own.",
    origin="clock_gettime(CLOCK_THREAD_CPUTIME_ID)",
)
REPLAY_MEMORY = Metric(
    "railscope_agent_replay_resident_memory_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    help="Memory that a capture or a simulated node occupied when it was loaded; not part of the agent's own.",
    origin="/proc/self/statm (pages)",
)
AGENT_CPU_USE = Metric(
    "railscope_agent_cpu_use_ratio",
    Kind.GAUGE,
    NODE,
    unit=Unit.RATIO,
    scale=MILLIONTH,
    rollups=(Rollup.MEAN, Rollup.MAX),
    help="Share of one processor core that the agent used over the last minute.",
    origin="clock_gettime(CLOCK_PROCESS_CPUTIME_ID)",
)
AGENT_CPU_BUDGET = Metric(
    "railscope_agent_cpu_budget_ratio",
    Kind.GAUGE,
    NODE,
    unit=Unit.RATIO,
    scale=MILLIONTH,
    help="Share of one processor core that the agent keeps to by reading less often.",
    origin="setting budget.cpu_ratio",
)
AGENT_MEMORY_BUDGET = Metric(
    "railscope_agent_memory_budget_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    help="Resident memory above which the agent gives back what it can do without.",
    origin="setting budget.memory_bytes",
)
GOVERNOR_STATE = Metric(
    "railscope_governor_state",
    Kind.STATE,
    BUDGET,
    states=GOVERNOR_STATES,
    help="Whether a budget of the agent is kept: within it, by stretching periods, or not at all (at_limit).",
    origin="agent",
)
SPOOL_SIZE = Metric(
    "railscope_spool_size_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.MAX,),
    help="Size of what waits to be acknowledged by the collector.",
    origin="agent spool",
)
SPOOL_BATCHES = Metric(
    "railscope_spool_envelopes",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.MAX,),
    help="Envelopes of frames that wait to be acknowledged by the collector.",
    origin="agent spool",
)
FRAMES_SHIPPED = Metric(
    "railscope_agent_shipped_frames_total",
    Kind.COUNTER,
    NODE,
    unit=Unit.FRAMES,
    rollups=(Rollup.SUM,),
    resets=START,
    help="Frames the collector has acknowledged as durable.",
    origin="agent",
)
LOG_LINES_LOST = Metric(
    "railscope_agent_log_lines_lost_total",
    Kind.COUNTER,
    NODE,
    resets=START,
    help="Log lines that could not be written: a full disk, a closed pipe.",
    origin="agent",
)
FRAMES_DROPPED = Metric(
    "railscope_agent_dropped_frames_total",
    Kind.COUNTER,
    DROP,
    unit=Unit.FRAMES,
    rollups=(Rollup.SUM,),
    resets=START,
    help="Frames that were given up before the collector had them, by reason.",
    origin="agent",
)
SHIP_FAILURES = Metric(
    "railscope_agent_ship_failures_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=START,
    help="Attempts to reach the collector that failed.",
    origin="agent",
)

WITNESS_STATE = Metric(
    "railscope_agent_audit_witness_state",
    Kind.STATE,
    NODE,
    states={0: "no_checkpoint", 1: "consistent", 2: "disputed"},
    help="State of the collector's audit log as verified by this agent: disputed if it contradicts the checkpoint stored here.",
    origin="agent",
)
WITNESSED_RECORDS = Metric(
    "railscope_agent_audit_checkpoint_records",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.MIN, Rollup.MAX),
    help="Records of the collector's audit log that the checkpoint stored here covers.",
    origin="agent",
)

DISPUTE_EVENT = EventClass(
    "audit_log_disputed",
    NODE,
    "error",
    help="The collector's audit log contradicts the checkpoint that this agent has stored.",
    origin="agent",
    facts=("kind", "held_size", "held_root", "offered_size", "offered_root"),
    audited=True,
)
SOURCE_EVENT = EventClass(
    "source_state",
    SOURCE,
    "warning",
    help="A source changed its state.",
    origin="agent",
    facts=("before", "after", "problem"),
)
HANG_EVENT = EventClass(
    "device_hang",
    NODE,
    "error",
    help="A call about a device has not returned and was left to its thread (hung), or has returned.",
    origin="agent",
    facts=("device", "call", "for", "state"),
)
GOVERNOR_EVENT = EventClass(
    "governor",
    SOURCE,
    "warning",
    help="The governor changed the period of a source, to keep the agent's budget or as there is room again.",
    origin="agent",
    facts=("before", "after", "why"),
)
GAP_EVENT = EventClass(
    "gap",
    DROP,
    "error",
    help="The agent gave up frames before the collector had them.",
    origin="agent spool",
    facts=("frames", "envelopes"),
    audited=True,
)
