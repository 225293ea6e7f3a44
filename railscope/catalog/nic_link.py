"""Metrics of NICs: errors of link, PCIe bus and transceiver, from the same sources as `nic`."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NIC, NIC_LANE
from railscope.catalog.nic import DRIVER_LOAD, SUM_AND_MAX, counter

CRC_ERRORS = counter(
    "receive_crc_errors",
    "Frames received with a wrong checksum.",
    unit=Unit.ERRORS,
    origin="mlx5 rx_crc_errors_phy; bnxt rx_fcs_err_frames; ice rx_crc_errors.nic; i40e port.rx_crc_errors",
)
SYMBOL_ERRORS = counter(
    "receive_symbol_errors",
    "Packets dropped for symbols that could not be decoded.",
    unit=Unit.ERRORS,
    origin="mlx5 rx_symbol_err_phy",
)
UNCORRECTED_SYMBOLS = counter(
    "receive_uncorrected_symbol_errors",
    "Symbols that forward error correction could not mend.",
    unit=Unit.ERRORS,
    origin="mlx5 rx_pcs_symbol_err_phy; bnxt rx_pcs_symbol_err",
)
LINE_RECEIVED = counter(
    "receive_line_bytes",
    "Everything received on the wire, coding and idle included; eight times this is the base of the bit error ratio.",
    unit=Unit.BYTES,
    scale=per(8),
    origin="mlx5 rx_bits_phy; bnxt rx_bits",
)
CORRECTED = counter(
    "receive_corrected_errors",
    "Wrong bits that forward error correction mended.",
    unit=Unit.ERRORS,
    origin="mlx5 rx_corrected_bits_phy; bnxt rx_corrected_bits; others ETHTOOL_A_FEC_STAT_CORR_BITS",
)
FEC_CORRECTED_BLOCKS = counter(
    "receive_fec_corrected_blocks",
    "Blocks that forward error correction mended.",
    origin="bnxt rx_fec_corrected_blocks; others ETHTOOL_A_FEC_STAT_CORRECTED",
)
FEC_UNCORRECTABLE_BLOCKS = counter(
    "receive_fec_uncorrectable_blocks",
    "Blocks that forward error correction could not mend.",
    origin="bnxt rx_fec_uncorrectable_blocks; others ETHTOOL_A_FEC_STAT_UNCORR",
)
LANE_ERRORS = counter(
    "receive_lane_errors",
    "Bits mended on one lane of the link.",
    about=NIC_LANE,
    unit=Unit.ERRORS,
    origin="mlx5 rx_err_lane_L_phy",
)
LINK_DOWNS = counter(
    "link_downs",
    "Times the link went down.",
    origin="mlx5 link_down_events_phy; bnxt link_down_events",
)
PCIE_SIGNAL_ERRORS_RECEIVED = counter(
    "pcie_receive_signal_errors",
    "PCIe checksum errors the card saw on what it received.",
    unit=Unit.ERRORS,
    origin="mlx5 rx_pci_signal_integrity",
)
PCIE_SIGNAL_ERRORS_SENT = counter(
    "pcie_transmit_signal_errors",
    "PCIe packets the card had to send again.",
    unit=Unit.ERRORS,
    origin="mlx5 tx_pci_signal_integrity",
)
PCIE_READ_STALL = Metric(
    "railscope_nic_pcie_read_stall_ratio",
    Kind.GAUGE,
    NIC,
    unit=Unit.RATIO,
    scale=per(100),
    rollups=(Rollup.MAX,),
    help="Share of the last second in which the card's PCIe reads waited for credits.",
    origin="ethtool statistics: mlx5 outbound_pci_stalled_rd (percent)",
)
PCIE_WRITE_STALL = Metric(
    "railscope_nic_pcie_write_stall_ratio",
    Kind.GAUGE,
    NIC,
    unit=Unit.RATIO,
    scale=per(100),
    rollups=(Rollup.MAX,),
    help="Share of the last second in which the card's PCIe writes waited for credits.",
    origin="ethtool statistics: mlx5 outbound_pci_stalled_wr (percent)",
)
PCIE_READ_STALLED = Metric(
    "railscope_nic_pcie_read_stalled_seconds_total",
    Kind.COUNTER,
    NIC,
    unit=Unit.SECONDS,
    rollups=SUM_AND_MAX,
    resets=DRIVER_LOAD,
    help="Seconds in which PCIe reads of the card were stalled for more than 30 % of the time.",
    origin="ethtool statistics: mlx5 outbound_pci_stalled_rd_events (s)",
)
PCIE_WRITE_STALLED = Metric(
    "railscope_nic_pcie_write_stalled_seconds_total",
    Kind.COUNTER,
    NIC,
    unit=Unit.SECONDS,
    rollups=SUM_AND_MAX,
    resets=DRIVER_LOAD,
    help="Seconds in which PCIe writes of the card were stalled for more than 30 % of the time.",
    origin="ethtool statistics: mlx5 outbound_pci_stalled_wr_events (s)",
)
PCIE_OVERFLOWS = counter(
    "pcie_buffer_overflow_packets",
    "Packets dropped because PCIe could not take them in time.",
    unit=Unit.PACKETS,
    origin="mlx5 outbound_pci_buffer_overflow",
)
TRANSCEIVER_UNPLUGS = counter(
    "transceiver_unplugs",
    "Times the transceiver was pulled out.",
    origin="mlx5 module_unplug",
)
TRANSCEIVER_TOO_HOT = counter(
    "transceiver_high_temperature_events",
    "Times the transceiver was too hot.",
    origin="mlx5 module_high_temp",
)
