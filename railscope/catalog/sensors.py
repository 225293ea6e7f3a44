"""Hardware monitors of a node: power of processors (RAPL), sensor chips, memory errors (EDAC)."""

# fmt: off
from railscope.catalog import declare, entities

RAPL_START = "Counts from 0 at the start of the agent, and again from 0 after a reset of the hardware's counter or where it may have wrapped more than once between two reads."
CHIP_START = "Counts from when the chip or its driver was started."
EDAC_RESETS = "Counts from when the EDAC driver was loaded or its counters were cleared."
_RAPL = declare.MetricTable(entities.ENERGY_DOMAIN, origin="/sys/class/powercap/intel-rapl*/", resets=RAPL_START)
_HWMON = declare.MetricTable(entities.SENSOR, origin="/sys/class/hwmon/*/", resets=CHIP_START)
_EDAC = declare.MetricTable(entities.MEMORY_CONTROLLER, origin="/sys/devices/system/edac/", resets=EDAC_RESETS)

RAPL_ENERGY = _RAPL.counter("railscope_rapl_energy_joules_total", "Energy a power domain of the processors used; package-0/core is part of package-0.", "energy_uj (uJ, wraps at max_energy_range_uj)", scale=declare.MICRO, rollups=(declare.Rollup.SUM,), node_exporter="node_rapl_package_joules_total", valid=declare.POWER)
RAPL_POWER_LIMIT = _RAPL.gauge("railscope_rapl_power_limit_watts", "Average power the processor keeps a domain below, over a long or a short window.", "constraint_*_power_limit_uw (uW)", about=entities.POWER_LIMIT, scale=declare.MICRO)

# Hardware monitors -------------------------------------------------------------------------------
SENSOR_TEMPERATURE = _HWMON.gauge("railscope_sensor_temperature_celsius", "Temperature at the sensor.", "temp*_input (millidegrees)", scale=declare.MILLI, node_exporter="node_hwmon_temp_celsius")
SENSOR_TEMPERATURE_LIMIT = _HWMON.gauge("railscope_sensor_temperature_limit_celsius", "Temperature at which the sensor's chip warns or acts.", "temp*_{min,max,crit,emergency,lcrit} (millidegrees)", about=entities.SENSOR_LIMIT, scale=declare.MILLI)
SENSOR_FAN = _HWMON.gauge("railscope_sensor_fan_rpm", "Speed of the fan.", "fan*_input (1/min)", node_exporter="node_hwmon_fan_rpm")
SENSOR_FAN_LIMIT = _HWMON.gauge("railscope_sensor_fan_limit_rpm", "Speed below or above which the fan's chip warns.", "fan*_{min,max} (1/min)", about=entities.SENSOR_LIMIT)
SENSOR_POWER = _HWMON.gauge("railscope_sensor_power_watts", "Power at the sensor at present.", "power*_input (microwatts)", scale=declare.MICRO, node_exporter="node_hwmon_power_watt")
SENSOR_POWER_AVERAGE = _HWMON.gauge("railscope_sensor_average_power_watts", "Power at the sensor, averaged by its chip over its own interval.", "power*_average (microwatts)", scale=declare.MICRO, node_exporter="node_hwmon_power_average_watt")
SENSOR_POWER_LIMIT = _HWMON.gauge("railscope_sensor_power_limit_watts", "Power at which the sensor's chip warns, or which it enforces.", "power*_{cap,max,crit} (microwatts)", about=entities.SENSOR_LIMIT, scale=declare.MICRO)
SENSOR_ENERGY = _HWMON.counter("railscope_sensor_energy_joules_total", "Energy that passed the sensor.", "energy*_input (microjoules)", scale=declare.MICRO, valid=declare.POWER)
SENSOR_VOLTAGE = _HWMON.gauge("railscope_sensor_voltage_volts", "Voltage at the sensor.", "in*_input (millivolts)", scale=declare.MILLI, node_exporter="node_hwmon_in_volts")
SENSOR_VOLTAGE_LIMIT = _HWMON.gauge("railscope_sensor_voltage_limit_volts", "Voltage at which the sensor's chip warns or acts.", "in*_{min,max,crit,lcrit} (millivolts)", about=entities.SENSOR_LIMIT, scale=declare.MILLI)
SENSOR_CURRENT = _HWMON.gauge("railscope_sensor_current_amperes", "Current at the sensor.", "curr*_input (milliamperes)", scale=declare.MILLI, node_exporter="node_hwmon_curr_amps")
SENSOR_CURRENT_LIMIT = _HWMON.gauge("railscope_sensor_current_limit_amperes", "Current at which the sensor's chip warns or acts.", "curr*_{min,max,crit,lcrit} (milliamperes)", about=entities.SENSOR_LIMIT, scale=declare.MILLI)
SENSOR_ALARMS = _HWMON.gauge("railscope_sensor_alarm", "1 if the sensor's chip raises this alarm or reports a fault, 0 otherwise.", "*_{alarm,max_alarm,crit_alarm,fault,...}", about=entities.SENSOR_ALARM, detail=declare.BASIC)

# Memory errors (EDAC) ----------------------------------------------------------------------------
CONTROLLER_INFO = _EDAC.info("railscope_memory_controller_info", "Identity of this memory controller.", "mc/mc*/mc_name")
DIMM_INFO = _EDAC.info("railscope_dimm_info", "Identity of this memory module: slot, location at the controller, type, ECC in use.", "mc/mc*/{dimm,rank}*/dimm_{label,location,mem_type,dev_type,edac_mode}", about=entities.DIMM)
MEMORY_CORRECTED = _EDAC.counter("railscope_memory_corrected_errors_total", "Memory errors that ECC corrected, all modules of the controller.", "mc/mc*/ce_count", bits=32, node_exporter="node_edac_correctable_errors_total", detail=declare.BASIC)
MEMORY_UNCORRECTED = _EDAC.counter("railscope_memory_uncorrected_errors_total", "Memory errors that ECC could not correct, all modules of the controller.", "mc/mc*/ue_count", rollups=(declare.Rollup.SUM,), bits=32, node_exporter="node_edac_uncorrectable_errors_total", detail=declare.BASIC)
MEMORY_UNPLACED_CORRECTED = _EDAC.counter("railscope_memory_unplaced_corrected_errors_total", "Corrected memory errors the controller could not assign to a module.", "mc/mc*/ce_noinfo_count", bits=32)
MEMORY_UNPLACED_UNCORRECTED = _EDAC.counter("railscope_memory_unplaced_uncorrected_errors_total", "Uncorrected memory errors the controller could not assign to a module.", "mc/mc*/ue_noinfo_count", bits=32)
DIMM_CORRECTED = _EDAC.counter("railscope_dimm_corrected_errors_total", "Errors of the memory module that ECC corrected.", "mc/mc*/{dimm,rank}*/dimm_ce_count", about=entities.DIMM, bits=32)
DIMM_UNCORRECTED = _EDAC.counter("railscope_dimm_uncorrected_errors_total", "Errors of the memory module that ECC could not correct.", "mc/mc*/{dimm,rank}*/dimm_ue_count", about=entities.DIMM, bits=32)
PCI_PARITY = _EDAC.counter("railscope_pci_parity_errors_total", "PCI parity errors of all devices, where the kernel checks for them.", "pci/pci_parity_count", about=entities.NODE, bits=32)
PCI_OTHER = _EDAC.counter("railscope_pci_nonparity_errors_total", "PCI errors other than parity of all devices, where the kernel checks for them.", "pci/pci_nonparity_count", about=entities.NODE, bits=32)
