"""Metrics of PCIe links, as sysfs tells them."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Rollup, Unit
from railscope.catalog.entities import PCIE, PCIE_AER

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
