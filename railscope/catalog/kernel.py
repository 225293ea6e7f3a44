"""Kernel log: counters of messages, and the events themselves."""

# fmt: off
from railscope.catalog import declare, entities

LOG = "Counts from the start of the kernel log the agent could read."
_KERNEL = declare.MetricTable(entities.NODE, resets=LOG)

XIDS = _KERNEL.counter("railscope_kernel_xids_total", "Xid messages of the NVIDIA driver on this node.", "kernel log, NVRM: Xid (...), and NVML events; an Xid that both report counts once", rollups=(declare.Rollup.SUM,), detail=declare.BASIC)
SXIDS = _KERNEL.counter("railscope_kernel_sxids_total", "SXid messages of the NVSwitch driver on this node, follow-up lines not counted.", "kernel log, nvidia-nvswitchN: SXid (...)", rollups=(declare.Rollup.SUM,), detail=declare.BASIC)
SXID_ERRORS = _KERNEL.counter("railscope_nvswitch_sxid_errors_total", "SXid messages of the NVSwitch driver, by switch, SXid number and severity.", "kernel log, nvidia-nvswitchN: SXid (...)", about=entities.SXID, detail=declare.BASIC)
LINK_MESSAGES = _KERNEL.counter("railscope_kernel_link_changes_total", "Kernel messages that an interface's link came up or went down.", "kernel log, Link up / Link down / NIC Link is Up / Down", about=entities.LINK_CHANGE)
AER_MESSAGES = _KERNEL.counter("railscope_kernel_aer_messages_total", "Kernel messages about PCIe errors, by device and severity.", "kernel log, AER: ... error message received from; section_type: PCIe error", about=entities.AER_MESSAGE)
OOM_KILLS = _KERNEL.counter("railscope_kernel_oom_kills_total", "Processes the kernel killed because memory ran out.", "kernel log, Out of memory: Killed process", rollups=(declare.Rollup.SUM,), detail=declare.BASIC)
GPU_FAILURES = _KERNEL.counter("railscope_kernel_gpu_failures_total", "Messages of the NVIDIA driver that a GPU was lost, could not be started, or must be reset.", "kernel log, NVRM: ... fallen off the bus / GPU lost / RmInitAdapter failed / not supported by / No firmware image found / probe ... failed / reset or reboot required")
LOG_RECORDS = _KERNEL.counter("railscope_kernel_log_records_total", "Kernel log records the agent has read.", "/dev/kmsg")
LOG_LOST = _KERNEL.counter("railscope_kernel_log_lost_records_total", "Kernel log records that were overwritten before the agent could read them.", "/dev/kmsg, gaps in the sequence number", detail=declare.BASIC)
LOG_SUPPRESSED = _KERNEL.counter("railscope_kernel_log_suppressed_events_total", "Messages that were not reported individually, because they repeated or too many arrived at once.", "/dev/kmsg")
DRIVER_REPORT = _KERNEL.state("railscope_pcie_driver_report", "Worst fault of a PCIe device that its driver reports, until the driver reports recovery, a reset or a new start of the device; heat counts for ten minutes. Absent without any report.", "kernel log, lines of the events device_failed, transmit_timeout, slot_power, port_module and device_too_hot", states={0: "none", 1: "too_hot", 2: "module_error", 3: "slot_power", 4: "send_queue_stuck", 5: "failed"}, about=entities.PCIE, detail=declare.BASIC)
XID_EVENT = declare.EventClass("xid", entities.XID, "error", "The NVIDIA driver reported an error of a GPU.", "kernel log, NVRM: Xid (...)", ("process", "process_name", "gpu_instance", "compute_instance", "message", "name", "meaning", "severity", "action", "nvidia_action", "reported_by"))
SXID_EVENT = declare.EventClass("sxid", entities.SXID, "error", "The NVSwitch driver reported an error of a switch.", "kernel log, nvidia-nvswitchN: SXid (...)", ("pci_address", "link", "message"))
GPU_LOST_EVENT = declare.EventClass("gpu_lost", entities.GPU_ADDRESS, "error", "A GPU no longer answers on the PCIe bus; address unknown if the driver does not name it.", "kernel log, NVRM: ... fallen off the bus / GPU lost", ("message",))
GPU_INIT_FAILED_EVENT = declare.EventClass("gpu_init_failed", entities.GPU_ADDRESS, "error", "The NVIDIA driver could not start a GPU.", "kernel log, NVRM: GPU ...: RmInitAdapter failed / not supported by / No firmware image found, nvidia: probe of ... failed", ("message",))
GPU_RESET_EVENT = declare.EventClass("gpu_reset_required", entities.GPU_ADDRESS, "error", "The NVIDIA driver reported without an Xid that a GPU must be reset, or the node be rebooted; address unknown if the driver does not name it.", "kernel log, NVRM: ... Reset required", ("message",))
LINK_EVENT = declare.EventClass("link_change", entities.LINK_CHANGE, "warning", "An interface's link came up or went down.", "kernel log", ("message",))
AER_EVENT = declare.EventClass("pcie_aer", entities.AER_MESSAGE, "warning", "A PCIe device or port reported an error.", "kernel log, AER:, or [Hardware Error]: of the firmware", ("message",))
SLOT_POWER_EVENT = declare.EventClass("slot_power", entities.PCIE, "error", "The PCIe slot of a NIC states too little power for it, or none.", "kernel log, mlx5_core: ... power on the PCIe slot", ("state", "watts", "message"))
DEVICE_FAILED_EVENT = declare.EventClass("device_failed", entities.PCIE, "error", "The kernel or a driver declared that a PCIe device has failed, or that it could not recover.", "kernel log, DRIVER ADDRESS: Fatal error detected / firmware not responding / reset failed; DPC: ERR_FATAL; AER: can't recover / device recovery failed", ("message",))
DEVICE_RESET_EVENT = declare.EventClass("device_reset", entities.PCIE, "warning", "A driver reported that its PCIe device, or the device's firmware, is reset.", "kernel log, DRIVER ADDRESS: firmware reset event / PF reset requested / requesting a reset", ("message",))
DEVICE_RECOVERED_EVENT = declare.EventClass("device_recovered", entities.PCIE, "info", "A driver reported that its PCIe device, or a send queue of it, works again after a fault.", "kernel log, DRIVER ADDRESS: health recovery succeeded / Recovered ... EQEs / reset done / enabling device", ("message",))
DEVICE_HOT_EVENT = declare.EventClass("device_too_hot", entities.PCIE, "warning", "A driver reported that its PCIe device is too hot.", "kernel log, DRIVER ADDRESS: temperature has gone above the threshold / high temperature", ("message",))
TRANSMIT_TIMEOUT_EVENT = declare.EventClass("transmit_timeout", entities.NIC, "error", "A send queue of an interface made no progress, and the driver was requested to reset it.", "kernel log, NETDEV WATCHDOG: transmit queue timed out, and the driver's line about it", ("message",))
PORT_MODULE_EVENT = declare.EventClass("port_module", entities.PORT_MODULE, "warning", "A cable or transceiver was plugged, unplugged, or is faulty.", "kernel log, mlx5_core: Port module event", ("state", "problem", "message"))
PEER_MEMORY_EVENT = declare.EventClass("peer_memory", entities.NODE, "warning", "The kernel module for GPUDirect RDMA (nvidia-peermem) reported an error.", "kernel log, nvidia-peermem", ("message",))
OOM_EVENT = declare.EventClass("out_of_memory", entities.NODE, "error", "The kernel killed a process because memory ran out.", "kernel log, Out of memory: Killed process", ("process", "process_name", "message"))
