"""Transceivers and cables of NICs: identity and measurements."""

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NIC, NIC_LANE, NIC_TRANSCEIVER, NIC_TRANSCEIVER_THRESHOLD

_EEPROM = "ETHTOOL_MSG_MODULE_EEPROM_GET, SFF-8472, SFF-8636 or CMIS"
_NANO, _MICRO, _MILLI = per(10**9), per(10**6), per(1000)

TRANSCEIVER_INFO = Metric(
    "railscope_nic_transceiver_info",
    Kind.INFO,
    NIC_TRANSCEIVER,
    help="What transceiver or cable is plugged in: type, vendor, part, serial number, media, length.",
    origin=_EEPROM,
)
TRANSCEIVER_READABLE = Metric(
    "railscope_nic_transceiver_readable",
    Kind.GAUGE,
    NIC,
    rollups=(Rollup.SUM,),
    help="1 for an interface whose transceiver or cable says what it is; absent where none does.",
    origin=_EEPROM,
)
TRANSCEIVER_TEMPERATURE = Metric(
    "railscope_nic_transceiver_temperature_celsius",
    Kind.GAUGE,
    NIC,
    unit=Unit.CELSIUS,
    scale=_MILLI,
    rollups=(Rollup.MAX,),
    help="Temperature inside the transceiver.",
    origin=_EEPROM,
)
TRANSCEIVER_SUPPLY = Metric(
    "railscope_nic_transceiver_supply_volts",
    Kind.GAUGE,
    NIC,
    unit=Unit.VOLTS,
    scale=_MICRO,
    help="Supply voltage inside the transceiver.",
    origin=_EEPROM,
)
RECEIVE_POWER = Metric(
    "railscope_nic_transceiver_receive_power_watts",
    Kind.GAUGE,
    NIC_LANE,
    unit=Unit.WATTS,
    scale=_NANO,
    help="Optical power the transceiver receives on this lane.",
    origin=_EEPROM,
)
TRANSMIT_POWER = Metric(
    "railscope_nic_transceiver_transmit_power_watts",
    Kind.GAUGE,
    NIC_LANE,
    unit=Unit.WATTS,
    scale=_NANO,
    help="Optical power the transceiver sends on this lane.",
    origin=_EEPROM,
)
BIAS = Metric(
    "railscope_nic_transceiver_bias_amperes",
    Kind.GAUGE,
    NIC_LANE,
    unit=Unit.AMPERES,
    scale=_MICRO,
    help="Bias current of the laser of this lane.",
    origin=_EEPROM,
)
TEMPERATURE_THRESHOLD = Metric(
    "railscope_nic_transceiver_temperature_threshold_celsius",
    Kind.GAUGE,
    NIC_TRANSCEIVER_THRESHOLD,
    unit=Unit.CELSIUS,
    scale=_MILLI,
    help="Temperature at which the transceiver itself raises this alarm or warning.",
    origin=_EEPROM,
)
RECEIVE_POWER_THRESHOLD = Metric(
    "railscope_nic_transceiver_receive_power_threshold_watts",
    Kind.GAUGE,
    NIC_TRANSCEIVER_THRESHOLD,
    unit=Unit.WATTS,
    scale=_NANO,
    help="Received power at which the transceiver itself raises this alarm or warning.",
    origin=_EEPROM,
)
TRANSMIT_POWER_THRESHOLD = Metric(
    "railscope_nic_transceiver_transmit_power_threshold_watts",
    Kind.GAUGE,
    NIC_TRANSCEIVER_THRESHOLD,
    unit=Unit.WATTS,
    scale=_NANO,
    help="Sent power at which the transceiver itself raises this alarm or warning.",
    origin=_EEPROM,
)

TRANSCEIVER_EVENT = EventClass(
    "nic_transceiver_changed",
    NIC,
    "warning",
    help="Another transceiver or cable is plugged into a network card: part and serial number.",
    origin=_EEPROM,
    facts=("before", "after"),
)
