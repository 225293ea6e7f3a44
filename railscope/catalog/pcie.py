"""Metrics of PCIe links, from sysfs."""

from fractions import Fraction

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import PCIE, PCIE_AER, PCIE_ERROR, PCIE_ROOT_ERROR

PATH_STEPS = 13
"""Steps per byte per second: makes the payload rates of 128b/130b coded lanes whole numbers."""

PCIE_INFO = Metric(
    "railscope_pcie_info",
    Kind.INFO,
    PCIE,
    help="What sits at this PCI address: role, vendor, device, driver and NUMA node.",
    origin="/sys/bus/pci/devices/*/{class,vendor,device,numa_node,driver}",
)
PCIE_SPEED = Metric(
    "railscope_pcie_link_speed_transfers_per_second",
    Kind.GAUGE,
    PCIE,
    unit=Unit.TRANSFERS_PER_SECOND,
    scale=Fraction(10**6),
    rollups=(Rollup.MIN,),
    help="Speed the PCIe link runs at now, per lane; an idle link may slow down to save power.",
    origin="/sys/bus/pci/devices/*/current_link_speed (GT/s)",
)
PCIE_SPEED_LIMIT = Metric(
    "railscope_pcie_link_speed_limit_transfers_per_second",
    Kind.GAUGE,
    PCIE,
    unit=Unit.TRANSFERS_PER_SECOND,
    scale=Fraction(10**6),
    help="Highest speed the device's PCIe link can run at, per lane.",
    origin="/sys/bus/pci/devices/*/max_link_speed (GT/s)",
)
PCIE_WIDTH = Metric(
    "railscope_pcie_link_width_lanes",
    Kind.GAUGE,
    PCIE,
    unit=Unit.LANES,
    rollups=(Rollup.MIN,),
    help="Lanes the PCIe link uses now.",
    origin="/sys/bus/pci/devices/*/current_link_width",
)
PCIE_WIDTH_LIMIT = Metric(
    "railscope_pcie_link_width_limit_lanes",
    Kind.GAUGE,
    PCIE,
    unit=Unit.LANES,
    help="Most lanes the device's PCIe link can use.",
    origin="/sys/bus/pci/devices/*/max_link_width",
)
PCIE_PATH_LIMIT = Metric(
    "railscope_pcie_path_limit_bytes_per_second",
    Kind.GAUGE,
    PCIE,
    unit=Unit.BYTES_PER_SECOND,
    scale=per(PATH_STEPS),
    help="Most the path from the device to the processor can carry each way: the least of its links,"
    " each link the lesser of its two ends.",
    origin="/sys/bus/pci/devices/*/{max_link_speed,max_link_width} of the device and all ports"
    " above, payload coding taken off",
)
PCIE_PATH_BANDWIDTH = Metric(
    "railscope_pcie_path_bandwidth_bytes_per_second",
    Kind.GAUGE,
    PCIE,
    unit=Unit.BYTES_PER_SECOND,
    scale=per(PATH_STEPS),
    rollups=(Rollup.MIN,),
    help="What the path from the device to the processor can carry each way as its links run now.",
    origin="/sys/bus/pci/devices/*/{current_link_speed,current_link_width} of the device and all"
    " ports above, payload coding taken off",
)
PCIE_PATH_STATE = Metric(
    "railscope_pcie_path_state",
    Kind.STATE,
    PCIE,
    states={0: "full", 1: "power_saving", 2: "degraded", 3: "lost"},
    help="Whether the links from the device to the processor run as fast and as wide as they could:"
    " power_saving is the lower speed of a GPU without work or of a sleeping drive, lost is a device"
    " whose registers are all ones.",
    origin="the two above; for GPUs also nvmlDeviceGetPerformanceState and"
    " nvmlDeviceGetUtilizationRates",
)
PCIE_PRESENT = Metric(
    "railscope_pcie_device_present",
    Kind.GAUGE,
    PCIE,
    rollups=(Rollup.MIN,),
    help="1 while the device is on the bus; 0 for one that was there since the agent started.",
    origin="/sys/bus/pci/devices",
)
PCIE_ROOT_ERRORS = Metric(
    "railscope_pcie_root_port_errors_total",
    Kind.COUNTER,
    PCIE_ROOT_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets="Counts from boot.",
    help="Error messages a root port got from the devices below it, and from itself, by severity.",
    origin="/sys/bus/pci/devices/*/aer_rootport_total_err_{cor,nonfatal,fatal}",
)
PCIE_ERRORS = Metric(
    "railscope_pcie_device_errors_total",
    Kind.COUNTER,
    PCIE_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets="Counts from boot or from when the device was plugged in.",
    help="Error messages that Advanced Error Reporting counted for a device, of all kinds, by severity.",
    origin="TOTAL_ERR_* of /sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}",
)
PCIE_AER_ERRORS = Metric(
    "railscope_pcie_aer_errors_total",
    Kind.COUNTER,
    PCIE_AER,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets="Counts from boot or from when the device was plugged in.",
    help="PCIe errors that Advanced Error Reporting counted, by severity and kind of error.",
    origin="/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}",
)
PCIE_GONE_EVENT = EventClass(
    "pcie_device_gone",
    PCIE,
    "error",
    help="A device that was on the PCI bus is there no more.",
    origin="/sys/bus/pci/devices",
    facts=("role", "names", "driver", "model"),
)
PCIE_BACK_EVENT = EventClass(
    "pcie_device_back",
    PCIE,
    "info",
    help="A device that had gone from the PCI bus is there again.",
    origin="/sys/bus/pci/devices",
    facts=("role", "names", "driver", "model"),
)
