"""MAC addresses, transceivers and cables of NICs, and the switch ports that they lead to."""

# fmt: off
from railscope.catalog import declare, entities

_EEPROM = declare.MetricTable(entities.NIC, origin="ETHTOOL_MSG_MODULE_EEPROM_GET, SFF-8472, SFF-8636 or CMIS")
_LLDP = declare.MetricTable(entities.NIC, origin="LLDP frames (IEEE 802.1AB) of the interface")

TRANSCEIVER_INFO = _EEPROM.info("railscope_nic_transceiver_info", "Identity of the transceiver or cable: type, vendor, part, serial number, media, length.", about=entities.NIC_TRANSCEIVER, detail=declare.BASIC)
TRANSCEIVER_READABLE = _EEPROM.gauge("railscope_nic_transceiver_readable", "1 for an interface whose transceiver or cable identifies itself; absent elsewhere.", detail=declare.BASIC)
TRANSCEIVER_TEMPERATURE = _EEPROM.gauge("railscope_nic_transceiver_temperature_celsius", "Temperature inside the transceiver.", scale=declare.MILLI, detail=declare.BASIC)
TRANSCEIVER_SUPPLY = _EEPROM.gauge("railscope_nic_transceiver_supply_volts", "Supply voltage inside the transceiver.", scale=declare.MICRO)
TRANSCEIVER_RECEIVE_POWER = _EEPROM.gauge("railscope_nic_transceiver_receive_power_watts", "Optical power the transceiver receives on this lane.", about=entities.NIC_LANE, scale=declare.NANO, detail=declare.BASIC)
TRANSCEIVER_TRANSMIT_POWER = _EEPROM.gauge("railscope_nic_transceiver_transmit_power_watts", "Optical power the transceiver sends on this lane.", about=entities.NIC_LANE, scale=declare.NANO)
TRANSCEIVER_BIAS = _EEPROM.gauge("railscope_nic_transceiver_bias_amperes", "Bias current of the laser of this lane.", about=entities.NIC_LANE, scale=declare.MICRO, detail=declare.FULL)
TRANSCEIVER_TEMPERATURE_THRESHOLD = _EEPROM.gauge("railscope_nic_transceiver_temperature_threshold_celsius", "Temperature at which the transceiver itself raises this alarm or warning.", about=entities.NIC_TRANSCEIVER_THRESHOLD, scale=declare.MILLI, detail=declare.BASIC)
TRANSCEIVER_RECEIVE_POWER_THRESHOLD = _EEPROM.gauge("railscope_nic_transceiver_receive_power_threshold_watts", "Received power at which the transceiver itself raises this alarm or warning.", about=entities.NIC_TRANSCEIVER_THRESHOLD, scale=declare.NANO, detail=declare.BASIC)
TRANSCEIVER_TRANSMIT_POWER_THRESHOLD = _EEPROM.gauge("railscope_nic_transceiver_transmit_power_threshold_watts", "Sent power at which the transceiver itself raises this alarm or warning.", about=entities.NIC_TRANSCEIVER_THRESHOLD, scale=declare.NANO)
TRANSCEIVER_EVENT = declare.EventClass("nic_transceiver_changed", entities.NIC, "warning", "Another transceiver or cable is plugged into a NIC: part and serial number.", _EEPROM.origin, ("before", "after"), judged_by="transceiver_threshold")

ADDRESS_INFO = declare.MetricTable(entities.NIC_ADDRESS, origin="/sys/class/net/<interface>/address, bonding_slave/perm_hwaddr").info("railscope_nic_address_info", "MAC address of this NIC, by which switches name it, and its permanent one where it differs, as for members of a bond.")

# Neighbours --------------------------------------------------------------------------------------
NEIGHBOUR_INFO = _LLDP.info("railscope_nic_neighbour_info", "Switch and switch port that this interface is plugged into, and the settings that the port announces (DCBX).", about=entities.NIC_NEIGHBOUR)
NEIGHBOUR_KNOWN = _LLDP.gauge("railscope_nic_neighbour_known", "1 if the neighbour of an interface with a carrier is known, 0 otherwise.")
NEIGHBOUR_EVENT = declare.EventClass("nic_neighbour_changed", entities.NIC, "warning", "An interface is plugged into another switch port than before.", _LLDP.origin, ("before", "after"), judged_by="cabling_fault")
