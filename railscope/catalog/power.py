"""Metrics of the power draw of the node's processors and memory (RAPL)."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import ENERGY_DOMAIN, POWER_LIMIT

MICRO = per(10**6)

ENERGY = Metric(
    "railscope_rapl_energy_joules_total",
    Kind.COUNTER,
    ENERGY_DOMAIN,
    unit=Unit.JOULES,
    scale=MICRO,
    rollups=(Rollup.SUM,),
    resets="Counts from 0 at the start of the agent, and anew where the hardware's counter was"
    " reset or may have gone round more than once unseen.",
    help="Energy a power domain of the processors used; package-0/core is part of package-0.",
    origin="/sys/class/powercap/intel-rapl*/energy_uj (uJ, goes round at max_energy_range_uj)",
    other_names={"node_exporter": "node_rapl_package_joules_total"},
)
LIMIT = Metric(
    "railscope_rapl_power_limit_watts",
    Kind.GAUGE,
    POWER_LIMIT,
    unit=Unit.WATTS,
    scale=MICRO,
    rollups=(Rollup.MIN,),
    help="Average power the processor keeps a domain below, over a long or a short window.",
    origin="/sys/class/powercap/intel-rapl*/constraint_*_power_limit_uw (uW)",
)
