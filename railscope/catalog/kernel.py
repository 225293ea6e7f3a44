"""Kernel log: counters of messages, and the events themselves."""

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    AER_MESSAGE,
    GPU_ADDRESS,
    LINK_CHANGE,
    NODE,
    PCIE,
    PORT_MODULE,
    SXID,
    XID,
)

LOG = "Counts from the start of the kernel log the agent could read."

XIDS = Metric(
    "railscope_kernel_xids_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="Xid messages of the NVIDIA driver on this server.",
    origin="kernel log, NVRM: Xid (...), and NVML events; one that both tell counts once",
)
SXIDS = Metric(
    "railscope_kernel_sxids_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="SXid messages of the NVSwitch driver on this server, follow-up lines not counted.",
    origin="kernel log, nvidia-nvswitchN: SXid (...)",
)
SXID_ERRORS = Metric(
    "railscope_nvswitch_sxid_errors_total",
    Kind.COUNTER,
    SXID,
    unit=Unit.ERRORS,
    resets=LOG,
    help="SXid messages of the NVSwitch driver, by switch, SXid number and severity.",
    origin="kernel log, nvidia-nvswitchN: SXid (...)",
)
LINK_MESSAGES = Metric(
    "railscope_kernel_link_changes_total",
    Kind.COUNTER,
    LINK_CHANGE,
    resets=LOG,
    help="Kernel messages that an interface's link came up or went down.",
    origin="kernel log, Link up / Link down / NIC Link is Up / Down",
)
AER_MESSAGES = Metric(
    "railscope_kernel_aer_messages_total",
    Kind.COUNTER,
    AER_MESSAGE,
    resets=LOG,
    help="Kernel messages about PCIe errors, by device and severity.",
    origin="kernel log, AER: ... error message received from",
)
OOM_KILLS = Metric(
    "railscope_kernel_oom_kills_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="Processes the kernel killed because memory ran out.",
    origin="kernel log, Out of memory: Killed process",
)
GPU_FAILURES = Metric(
    "railscope_kernel_gpu_failures_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="Messages of the NVIDIA driver that a GPU was lost or could not be started.",
    origin="kernel log, NVRM: GPU ...: GPU has fallen off the bus / RmInitAdapter failed",
)
LOG_RECORDS = Metric(
    "railscope_kernel_log_records_total",
    Kind.COUNTER,
    NODE,
    resets=LOG,
    help="Kernel log records the agent has read.",
    origin="/dev/kmsg",
)
LOG_LOST = Metric(
    "railscope_kernel_log_lost_records_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="Kernel log records that were overwritten before the agent could read them.",
    origin="/dev/kmsg, gaps in the sequence number",
)
LOG_SUPPRESSED = Metric(
    "railscope_kernel_log_suppressed_events_total",
    Kind.COUNTER,
    NODE,
    rollups=(Rollup.SUM,),
    resets=LOG,
    help="Messages that were counted but not reported individually, because too many came at once.",
    origin="/dev/kmsg",
)

XID_EVENT = EventClass(
    "xid",
    XID,
    "error",
    help="The NVIDIA driver reported an error of a GPU.",
    origin="kernel log, NVRM: Xid (...)",
    facts=(
        "process",
        "process_name",
        "gpu_instance",
        "compute_instance",
        "message",
        "name",
        "meaning",
        "severity",
        "action",
        "nvidia_action",
        "reported_by",
    ),
)
SXID_EVENT = EventClass(
    "sxid",
    SXID,
    "error",
    help="The NVSwitch driver reported an error of a switch.",
    origin="kernel log, nvidia-nvswitchN: SXid (...)",
    facts=("pci_address", "link", "message"),
)
GPU_LOST_EVENT = EventClass(
    "gpu_lost",
    GPU_ADDRESS,
    "error",
    help="A GPU no longer answers on the PCIe bus.",
    origin="kernel log, NVRM: GPU ...: GPU has fallen off the bus",
    facts=("message",),
)
GPU_INIT_FAILED_EVENT = EventClass(
    "gpu_init_failed",
    GPU_ADDRESS,
    "error",
    help="The NVIDIA driver could not start a GPU.",
    origin="kernel log, NVRM: GPU ...: RmInitAdapter failed",
    facts=("message",),
)
LINK_EVENT = EventClass(
    "link_change",
    LINK_CHANGE,
    "warning",
    help="An interface's link came up or went down.",
    origin="kernel log",
    facts=("message",),
)
AER_EVENT = EventClass(
    "pcie_aer",
    AER_MESSAGE,
    "warning",
    help="A PCIe device or port reported an error.",
    origin="kernel log, AER:",
    facts=("message",),
)
SLOT_POWER_EVENT = EventClass(
    "slot_power",
    PCIE,
    "error",
    help="The PCIe slot of a network card states too little power for it, or none at all.",
    origin="kernel log, mlx5_core: ... power on the PCIe slot",
    facts=("state", "watts", "message"),
)
PORT_MODULE_EVENT = EventClass(
    "port_module",
    PORT_MODULE,
    "warning",
    help="A cable or transceiver was plugged, unplugged, or is faulty.",
    origin="kernel log, mlx5_core: Port module event",
    facts=("state", "problem", "message"),
)
PEER_MEMORY_EVENT = EventClass(
    "peer_memory",
    NODE,
    "warning",
    help="The kernel module for GPUDirect RDMA (nvidia-peermem) reported an error.",
    origin="kernel log, nvidia-peermem",
    facts=("message",),
)
OOM_EVENT = EventClass(
    "out_of_memory",
    NODE,
    "error",
    help="The kernel killed a process because memory ran out.",
    origin="kernel log, Out of memory: Killed process",
    facts=("process", "process_name", "message"),
)
