"""Metrics of PCIe links, from sysfs."""

# fmt: off
from railscope.catalog.declare import BASIC, FULL, MEGA, EventClass, MetricTable, Rollup, per
from railscope.catalog.entities import PCIE, PCIE_AER, PCIE_ERROR, PCIE_ROOT_ERROR, PCIE_SEVERITY

PLUGGED = "Counts from boot or from when the device was plugged in."
_PCIE = MetricTable(PCIE, resets=PLUGGED)

PATH_STEPS = 13
"""Steps per byte per second: makes the payload rates of 128b/130b coded lanes whole numbers."""
PCIE_INFO = _PCIE.info("railscope_pcie_info", "Device at this PCI address: role, vendor, device, driver and NUMA node.", "/sys/bus/pci/devices/*/{class,vendor,device,numa_node,driver}", detail=BASIC)
PCIE_SPEED = _PCIE.gauge("railscope_pcie_link_speed_transfers_per_second", "Speed the PCIe link runs at now, per lane; an idle link may slow down to save power.", "/sys/bus/pci/devices/*/current_link_speed (GT/s)", scale=MEGA)
PCIE_SPEED_LIMIT = _PCIE.gauge("railscope_pcie_link_speed_limit_transfers_per_second", "Highest speed the device's PCIe link can run at, per lane.", "/sys/bus/pci/devices/*/max_link_speed (GT/s)", scale=MEGA, detail=FULL)
PCIE_WIDTH = _PCIE.gauge("railscope_pcie_link_width_lanes", "Lanes the PCIe link uses now.", "/sys/bus/pci/devices/*/current_link_width")
PCIE_WIDTH_LIMIT = _PCIE.gauge("railscope_pcie_link_width_limit_lanes", "Maximum lanes of the device's PCIe link.", "/sys/bus/pci/devices/*/max_link_width", detail=FULL)
PCIE_PATH_LIMIT = _PCIE.gauge("railscope_pcie_path_limit_bytes_per_second", "Maximum bandwidth of the path from the device to the processor in each direction: the minimum of its links, each link the minimum of its two ends.", "/sys/bus/pci/devices/*/{max_link_speed,max_link_width} of the device and all ports above, payload coding taken off", scale=per(PATH_STEPS))
PCIE_PATH_BANDWIDTH = _PCIE.gauge("railscope_pcie_path_bandwidth_bytes_per_second", "Bandwidth of the path from the device to the processor in each direction, at the present speed of its links.", "/sys/bus/pci/devices/*/{current_link_speed,current_link_width} of the device and all ports above, payload coding taken off", scale=per(PATH_STEPS), detail=BASIC)
PCIE_PATH_STATE = _PCIE.state("railscope_pcie_path_state", "State of the links from the device to the processor, compared with their full speed and width: power_saving is the lower speed of a GPU without work or of a sleeping drive, lost is a device whose registers are all ones.", "the two above; for GPUs also nvmlDeviceGetPerformanceState and nvmlDeviceGetUtilizationRates", states={0: "full", 1: "power_saving", 2: "degraded", 3: "lost"}, detail=BASIC)
PCIE_GONE = _PCIE.gauge("railscope_pcie_device_gone", "1 for a device that was on the bus since the agent started and has left it.", "/sys/bus/pci/devices", detail=BASIC, total=PCIE_INFO)
PCIE_ROOT_ERRORS = _PCIE.counter("railscope_pcie_root_port_errors_total", "Error messages a root port got from the devices below it, and from itself, by severity.", "/sys/bus/pci/devices/*/aer_rootport_total_err_{cor,nonfatal,fatal}", about=PCIE_ROOT_ERROR, resets="Counts from boot.")
PCIE_ALL_ERRORS = _PCIE.counter("railscope_pcie_all_devices_errors_total", "Error messages that Advanced Error Reporting counted for all devices of the node, by severity.", "agent, sum of railscope_pcie_device_errors_total; a device that cannot be read keeps its part", about=PCIE_SEVERITY, resets="Starts with the agent, at the sum of the devices.", detail=BASIC)
PCIE_ERRORS = _PCIE.counter("railscope_pcie_device_errors_total", "Error messages that Advanced Error Reporting counted for a device, of all kinds, by severity.", "TOTAL_ERR_* of /sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}", about=PCIE_ERROR, detail=BASIC, total=PCIE_ALL_ERRORS)
PCIE_AER_ERRORS = _PCIE.counter("railscope_pcie_aer_errors_total", "PCIe errors that Advanced Error Reporting counted, by severity and kind of error.", "/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}", about=PCIE_AER, rollups=(Rollup.SUM,), detail=BASIC, total=PCIE_ALL_ERRORS)
PCIE_GONE_EVENT = EventClass("pcie_device_gone", PCIE, "error", "A device has vanished from the PCI bus.", "/sys/bus/pci/devices", ("role", "names", "driver", "model"), judged_by="nic_lost")
PCIE_BACK_EVENT = EventClass("pcie_device_back", PCIE, "info", "A device that had vanished from the PCI bus is present again.", "/sys/bus/pci/devices", ("role", "names", "driver", "model"), judged_by="nic_lost")
