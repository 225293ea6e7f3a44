"""Metrics of the node's hardware monitors: temperatures, fans, voltages, currents, power."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Unit, per
from railscope.catalog.entities import SENSOR, SENSOR_ALARM, SENSOR_LIMIT

_ROOT = "/sys/class/hwmon/*"
_MILLI = per(1000)
_MICRO = per(10**6)
_NODE_EXPORTER = {
    "temperature": "temp_celsius",
    "fan": "fan_rpm",
    "power": "power_watt",
    "average_power": "power_average_watt",
    "voltage": "in_volts",
    "current": "curr_amps",
}


def _gauge(
    stem: str, unit: Unit, help_: str, origin: str, about: EntityKind = SENSOR
) -> Metric:  # fmt: skip
    other = _NODE_EXPORTER.get(stem) if about is SENSOR else None
    scale = {Unit.WATTS: _MICRO, Unit.REVOLUTIONS_PER_MINUTE: per(1)}.get(unit, _MILLI)
    return Metric(
        f"railscope_sensor_{stem}_{unit}", Kind.GAUGE, about,
        unit=unit, scale=scale, help=help_, origin=f"{_ROOT}/{origin}",
        other_names={"node_exporter": f"node_hwmon_{other}"} if other else {},
    )  # fmt: skip


TEMPERATURE = _gauge(
    "temperature", Unit.CELSIUS, "Temperature at the sensor.", "temp*_input (millidegrees)"
)
TEMPERATURE_LIMIT = _gauge(
    "temperature_limit",
    Unit.CELSIUS,
    "Temperature at which the sensor's chip warns or acts.",
    "temp*_{min,max,crit,emergency,lcrit} (millidegrees)",
    SENSOR_LIMIT,
)
FAN = _gauge("fan", Unit.REVOLUTIONS_PER_MINUTE, "Speed of the fan.", "fan*_input (1/min)")
FAN_LIMIT = _gauge(
    "fan_limit",
    Unit.REVOLUTIONS_PER_MINUTE,
    "Speed below or above which the fan's chip warns.",
    "fan*_{min,max} (1/min)",
    SENSOR_LIMIT,
)
POWER = _gauge(
    "power", Unit.WATTS, "Power at the sensor at present.", "power*_input (microwatts)"
)  # fmt: skip
POWER_AVERAGE = _gauge(
    "average_power",
    Unit.WATTS,
    "Power at the sensor, averaged by its chip over its own interval.",
    "power*_average (microwatts)",
)
POWER_LIMIT = _gauge(
    "power_limit",
    Unit.WATTS,
    "Power at which the sensor's chip warns or which it keeps.",
    "power*_{cap,max,crit} (microwatts)",
    SENSOR_LIMIT,
)
ENERGY = Metric(
    "railscope_sensor_energy_joules_total",
    Kind.COUNTER,
    SENSOR,
    unit=Unit.JOULES,
    scale=_MICRO,
    resets="Counts from when the chip or its driver was started.",
    help="Energy that passed the sensor.",
    origin=f"{_ROOT}/energy*_input (microjoules)",
)
VOLTAGE = _gauge("voltage", Unit.VOLTS, "Voltage at the sensor.", "in*_input (millivolts)")
VOLTAGE_LIMIT = _gauge(
    "voltage_limit",
    Unit.VOLTS,
    "Voltage at which the sensor's chip warns or acts.",
    "in*_{min,max,crit,lcrit} (millivolts)",
    SENSOR_LIMIT,
)
CURRENT = _gauge("current", Unit.AMPERES, "Current at the sensor.", "curr*_input (milliamperes)")
CURRENT_LIMIT = _gauge(
    "current_limit",
    Unit.AMPERES,
    "Current at which the sensor's chip warns or acts.",
    "curr*_{min,max,crit,lcrit} (milliamperes)",
    SENSOR_LIMIT,
)
ALARM = Metric(
    "railscope_sensor_alarm",
    Kind.GAUGE,
    SENSOR_ALARM,
    help="Whether the sensor's chip raises this alarm or reports a fault (1) or not (0).",
    origin=f"{_ROOT}/*_{{alarm,max_alarm,crit_alarm,fault,...}}",
)
