"""Metrics of the node itself."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import CPU_MODE, DISK, INTERFACE, LOAD_WINDOW, NIC, NODE, PRESSURE

BOOT = "Counts from boot."
MILLISECOND = per(1000)

NODE_INFO = Metric(
    "railscope_node_info",
    Kind.INFO,
    NODE,
    help="What this server is: host name, kernel and version of the agent.",
    origin="uname",
)
CPU_TIME = Metric(
    "railscope_cpu_seconds_total",
    Kind.COUNTER,
    CPU_MODE,
    unit=Unit.SECONDS,
    scale=per(100),
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Time all processors together have spent in each mode.",
    origin="psutil.cpu_times, /proc/stat (clock ticks of 10 ms)",
    other_names={"node_exporter": "node_cpu_seconds_total"},
)
CPUS = Metric(
    "railscope_cpus",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.SUM,),
    help="Logical processors that are online.",
    origin="psutil.cpu_count",
)
LOAD_AVERAGE = Metric(
    "railscope_load_average",
    Kind.GAUGE,
    LOAD_WINDOW,
    scale=per(100),
    rollups=(Rollup.MAX,),
    help="Average number of tasks that ran or waited, over 1, 5 or 15 minutes.",
    origin="/proc/loadavg",
    other_names={"node_exporter": "node_load1, node_load5, node_load15"},
)
MEMORY_SIZE = Metric(
    "railscope_memory_size_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="Main memory the kernel manages.",
    origin="psutil.virtual_memory().total, /proc/meminfo MemTotal",
)
MEMORY_AVAILABLE = Metric(
    "railscope_memory_available_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Main memory that new work could have without swapping.",
    origin="psutil.virtual_memory().available, /proc/meminfo MemAvailable",
)
MEMORY_CACHED = Metric(
    "railscope_memory_cached_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="Main memory that holds file contents and can be given back.",
    origin="psutil.virtual_memory().cached, /proc/meminfo Cached",
)
SWAP_USED = Metric(
    "railscope_swap_used_bytes",
    Kind.GAUGE,
    NODE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    help="Swap space in use.",
    origin="psutil.swap_memory().used, /proc/meminfo SwapTotal - SwapFree",
)
PRESSURE_STALLED = Metric(
    "railscope_pressure_stalled_seconds_total",
    Kind.COUNTER,
    PRESSURE,
    unit=Unit.SECONDS,
    scale=per(10**6),
    rollups=(Rollup.MAX,),
    resets=BOOT,
    help="Time in which some or all tasks waited for a resource.",
    origin="/proc/pressure/{cpu,memory,io} total (us)",
    other_names={"node_exporter": "node_pressure_cpu_waiting_seconds_total"},
)
DISK_READ = Metric(
    "railscope_disk_read_bytes_total",
    Kind.COUNTER,
    DISK,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Bytes read from the disk.",
    origin="psutil.disk_io_counters().read_bytes, /proc/diskstats (sectors of 512 bytes)",
)
DISK_WRITTEN = Metric(
    "railscope_disk_written_bytes_total",
    Kind.COUNTER,
    DISK,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Bytes written to the disk.",
    origin="psutil.disk_io_counters().write_bytes, /proc/diskstats (sectors of 512 bytes)",
)
DISK_READS = Metric(
    "railscope_disk_reads_total",
    Kind.COUNTER,
    DISK,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Read requests the disk completed.",
    origin="psutil.disk_io_counters().read_count",
)
DISK_WRITES = Metric(
    "railscope_disk_writes_total",
    Kind.COUNTER,
    DISK,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Write requests the disk completed.",
    origin="psutil.disk_io_counters().write_count",
)
DISK_READ_TIME = Metric(
    "railscope_disk_read_seconds_total",
    Kind.COUNTER,
    DISK,
    unit=Unit.SECONDS,
    scale=MILLISECOND,
    rollups=(Rollup.MAX,),
    resets=BOOT,
    help="Time all read requests together have taken.",
    origin="psutil.disk_io_counters().read_time (ms)",
)
DISK_WRITE_TIME = Metric(
    "railscope_disk_write_seconds_total",
    Kind.COUNTER,
    DISK,
    unit=Unit.SECONDS,
    scale=MILLISECOND,
    rollups=(Rollup.MAX,),
    resets=BOOT,
    help="Time all write requests together have taken.",
    origin="psutil.disk_io_counters().write_time (ms)",
)
DISK_BUSY_TIME = Metric(
    "railscope_disk_busy_seconds_total",
    Kind.COUNTER,
    DISK,
    unit=Unit.SECONDS,
    scale=MILLISECOND,
    rollups=(Rollup.MAX,),
    resets=BOOT,
    help="Time in which the disk had at least one request to serve.",
    origin="psutil.disk_io_counters().busy_time (ms)",
)
NETWORK_RECEIVED = Metric(
    "railscope_network_receive_bytes_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Bytes the kernel received on the interface; RDMA traffic passes it by.",
    origin="psutil.net_io_counters(pernic).bytes_recv, /proc/net/dev",
    other_names={"node_exporter": "node_network_receive_bytes_total"},
)
NETWORK_SENT = Metric(
    "railscope_network_transmit_bytes_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Bytes the kernel sent on the interface; RDMA traffic passes it by.",
    origin="psutil.net_io_counters(pernic).bytes_sent, /proc/net/dev",
    other_names={"node_exporter": "node_network_transmit_bytes_total"},
)
NETWORK_RECEIVED_PACKETS = Metric(
    "railscope_network_receive_packets_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.PACKETS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Packets the kernel received on the interface.",
    origin="psutil.net_io_counters(pernic).packets_recv, /proc/net/dev",
)
NETWORK_SENT_PACKETS = Metric(
    "railscope_network_transmit_packets_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.PACKETS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Packets the kernel sent on the interface.",
    origin="psutil.net_io_counters(pernic).packets_sent, /proc/net/dev",
)
NETWORK_RECEIVE_ERRORS = Metric(
    "railscope_network_receive_errors_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Received packets that were damaged.",
    origin="psutil.net_io_counters(pernic).errin, /proc/net/dev",
)
NETWORK_SEND_ERRORS = Metric(
    "railscope_network_transmit_errors_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Packets that could not be sent.",
    origin="psutil.net_io_counters(pernic).errout, /proc/net/dev",
)
NETWORK_RECEIVE_DROPS = Metric(
    "railscope_network_receive_dropped_packets_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.PACKETS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Received packets the kernel dropped.",
    origin="psutil.net_io_counters(pernic).dropin, /proc/net/dev",
)
NETWORK_SEND_DROPS = Metric(
    "railscope_network_transmit_dropped_packets_total",
    Kind.COUNTER,
    INTERFACE,
    unit=Unit.PACKETS,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Packets the kernel dropped before sending.",
    origin="psutil.net_io_counters(pernic).dropout, /proc/net/dev",
)
LINK_SPEED = Metric(
    "railscope_network_link_speed_bytes_per_second",
    Kind.GAUGE,
    NIC,
    unit=Unit.BYTES_PER_SECOND,
    scale=Fraction(125_000),
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Line rate of the interface.",
    origin="/sys/class/net/*/speed (Mb/s)",
    other_names={"node_exporter": "node_network_speed_bytes"},
)
LINK_UP = Metric(
    "railscope_network_link_up",
    Kind.GAUGE,
    NIC,
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Whether the interface is switched on and has a carrier (1) or not (0).",
    origin="rtnetlink IFLA_CARRIER, or /sys/class/net/*/carrier",
    other_names={"node_exporter": "node_network_carrier"},
)
LINK_CHANGES = Metric(
    "railscope_network_link_changes_total",
    Kind.COUNTER,
    NIC,
    rollups=(Rollup.SUM,),
    resets=BOOT,
    help="Times the carrier came or went.",
    origin="rtnetlink IFLA_CARRIER_CHANGES, or /sys/class/net/*/carrier_changes",
    other_names={"node_exporter": "node_network_carrier_changes_total"},
)
BOOT_TIME = Metric(
    "railscope_boot_time_seconds",
    Kind.GAUGE,
    NODE,
    unit=Unit.SECONDS,
    help="When the server booted, in seconds since 1970 (UTC).",
    origin="psutil.boot_time, /proc/stat btime",
    other_names={"node_exporter": "node_boot_time_seconds"},
)
