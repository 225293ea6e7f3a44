"""Metrics of the node itself."""

# fmt: off
from railscope.catalog import declare
from railscope.catalog.declare import BASIC, CENTI, MEGABIT, MICRO, MILLI, MetricTable, Rollup
from railscope.catalog.entities import CPU_MODE, DISK, INTERFACE, LOAD_WINDOW, NIC, NODE, PRESSURE

_HOST = MetricTable(NODE, resets=declare.BOOT_START)
_DISK = MetricTable(DISK, origin="psutil.disk_io_counters().", resets=declare.BOOT_START)
_INTERFACE = MetricTable(INTERFACE, origin="psutil.net_io_counters(pernic).", resets=declare.BOOT_START)

NODE_INFO = _HOST.info("railscope_node_info", "Identity of this node: host name, kernel and version of the agent.", "uname", detail=BASIC)
CPU_TIME = _HOST.counter("railscope_cpu_seconds_total", "Time all processors together have spent in each mode.", "psutil.cpu_times, /proc/stat (clock ticks of 10 ms)", about=CPU_MODE, scale=CENTI, rollups=(Rollup.SUM,), node_exporter="node_cpu_seconds_total", detail=BASIC)
CPUS = _HOST.gauge("railscope_cpus", "Logical processors that are online.", "psutil.cpu_count", rollups=(Rollup.SUM,))
LOAD_AVERAGE = _HOST.gauge("railscope_load_average", "Average number of tasks that ran or waited, over 1, 5 or 15 minutes.", "/proc/loadavg", about=LOAD_WINDOW, scale=CENTI, node_exporter="node_load1, node_load5, node_load15")
MEMORY_SIZE = _HOST.gauge("railscope_memory_size_bytes", "Main memory the kernel manages.", "psutil.virtual_memory().total, /proc/meminfo MemTotal", rollups=(Rollup.SUM,), detail=BASIC)
MEMORY_AVAILABLE = _HOST.gauge("railscope_memory_available_bytes", "Main memory that new work could have without swapping.", "psutil.virtual_memory().available, /proc/meminfo MemAvailable", rollups=(Rollup.SUM, Rollup.MIN), detail=BASIC)
MEMORY_CACHED = _HOST.gauge("railscope_memory_cached_bytes", "Main memory that caches file contents and can be reclaimed.", "psutil.virtual_memory().cached, /proc/meminfo Cached")
SWAP_USED = _HOST.gauge("railscope_swap_used_bytes", "Swap space in use.", "psutil.swap_memory().used, /proc/meminfo SwapTotal - SwapFree")
PRESSURE_STALLED = _HOST.counter("railscope_pressure_stalled_seconds_total", "Time in which some or all tasks waited for a resource.", "/proc/pressure/{cpu,memory,io} total (us)", about=PRESSURE, scale=MICRO, node_exporter="node_pressure_cpu_waiting_seconds_total", detail=BASIC, valid=declare.ELAPSED)
DISK_READ = _DISK.counter("railscope_disk_read_bytes_total", "Bytes read from the disk.", "read_bytes, /proc/diskstats (sectors of 512 bytes)", rollups=(Rollup.SUM,), valid=declare.PORT_BYTES)
DISK_WRITTEN = _DISK.counter("railscope_disk_written_bytes_total", "Bytes written to the disk.", "write_bytes, /proc/diskstats (sectors of 512 bytes)", rollups=(Rollup.SUM,), valid=declare.PORT_BYTES)
DISK_READS = _DISK.counter("railscope_disk_reads_total", "Read requests the disk completed.", "read_count")
DISK_WRITES = _DISK.counter("railscope_disk_writes_total", "Write requests the disk completed.", "write_count")
DISK_READ_TIME = _DISK.counter("railscope_disk_read_seconds_total", "Time all read requests together have taken.", "read_time (ms)", scale=MILLI)
DISK_WRITE_TIME = _DISK.counter("railscope_disk_write_seconds_total", "Time all write requests together have taken.", "write_time (ms)", scale=MILLI)
DISK_BUSY_TIME = _DISK.counter("railscope_disk_busy_seconds_total", "Time in which the disk had at least one request to serve.", "busy_time (ms)", scale=MILLI, valid=declare.ELAPSED)
NETWORK_RECEIVED = _INTERFACE.counter("railscope_network_receive_bytes_total", "Bytes the kernel received on the interface; RDMA traffic passes it by.", "bytes_recv, /proc/net/dev", node_exporter="node_network_receive_bytes_total", valid=declare.PORT_BYTES)
NETWORK_SENT = _INTERFACE.counter("railscope_network_transmit_bytes_total", "Bytes the kernel sent on the interface; RDMA traffic passes it by.", "bytes_sent, /proc/net/dev", node_exporter="node_network_transmit_bytes_total", valid=declare.PORT_BYTES)
NETWORK_RECEIVED_PACKETS = _INTERFACE.counter("railscope_network_receive_packets_total", "Packets the kernel received on the interface.", "packets_recv, /proc/net/dev")
NETWORK_SENT_PACKETS = _INTERFACE.counter("railscope_network_transmit_packets_total", "Packets the kernel sent on the interface.", "packets_sent, /proc/net/dev")
NETWORK_RECEIVE_ERRORS = _INTERFACE.counter("railscope_network_receive_errors_total", "Received packets that were damaged.", "errin, /proc/net/dev")
NETWORK_SEND_ERRORS = _INTERFACE.counter("railscope_network_transmit_errors_total", "Packets that could not be sent.", "errout, /proc/net/dev")
NETWORK_RECEIVE_DROPS = _INTERFACE.counter("railscope_network_receive_dropped_packets_total", "Received packets the kernel dropped.", "dropin, /proc/net/dev")
NETWORK_SEND_DROPS = _INTERFACE.counter("railscope_network_transmit_dropped_packets_total", "Packets the kernel dropped before sending.", "dropout, /proc/net/dev")
LINK_SPEED = _HOST.gauge("railscope_network_link_speed_bytes_per_second", "Line rate of the interface.", "/sys/class/net/*/speed (Mb/s)", about=NIC, scale=MEGABIT, node_exporter="node_network_speed_bytes", detail=BASIC)
LINK_UP = _HOST.gauge("railscope_network_link_up", "1 if the interface is switched on and has a carrier, 0 otherwise.", "rtnetlink IFLA_CARRIER, or /sys/class/net/*/carrier", about=NIC, node_exporter="node_network_carrier", detail=BASIC, rollups=(Rollup.MIN,))
LINK_CHANGES = _HOST.counter("railscope_network_link_changes_total", "Changes of the carrier.", "rtnetlink IFLA_CARRIER_CHANGES, or /sys/class/net/*/carrier_changes", about=NIC, node_exporter="node_network_carrier_changes_total", detail=BASIC)
BOOT_TIME = _HOST.gauge("railscope_boot_time_seconds", "Time of boot, in seconds since 1970 (UTC).", "psutil.boot_time, /proc/stat btime", node_exporter="node_boot_time_seconds", detail=BASIC)
