"""Rules about connections between GPUs: NVLinks, and the fabric of NVLink switches.

Sources: NVIDIA/DCGM, modules/health/DcgmHealthWatch.cpp (replays and recoveries fail, CRC errors warn, many
of them fail; from Blackwell on, recoveries of a link); nvml.h, nvmlGpuFabricInfo.
"""

from __future__ import annotations

from itertools import chain

from railscope.catalog import gpu_health as h, gpu_sharing as s, nvlink as n
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.health import driver_rules, health_facts, rule

RECOVERING = ("replay", "recovery")
CRC = ("crc", "crc_flit", "crc_data")
CRC_PER_SECOND = 100
"""DCGM_LIMIT_MAX_NVLINK_CRC_ERROR: CRC errors only matter at rates of 100 and more per second."""
WORST_BIT_ERROR_DECADES = 12
_NOT_SUPPORTED, *_, COMPLETED = h.GPU_FABRIC_STATE.states
_CARRIED = (
    n.NVLINK_RAW_TRANSMITTED,
    n.NVLINK_RAW_RECEIVED,
    n.NVLINK_TRANSMITTED,
    n.NVLINK_RECEIVED,
)
_DCGM = "DCGM health"
_RESET = rule.RequiredActions(("drain", "reset_gpu"), ("WORKFLOW_NVLINK_ERR",))


def _has_not_joined(facts: health_facts.HealthFacts) -> bool:
    state = facts.reading(h.GPU_FABRIC_STATE)
    if state == COMPLETED:
        return facts.number(h.GPU_FABRIC_STATUS) != 0
    if state in {_NOT_SUPPORTED, Absent.UNSUPPORTED} and facts.has_fabric_peer:
        return not _is_partitioned(facts)
    return health_facts.require_value(state) != _NOT_SUPPORTED


def _is_down(facts: health_facts.HealthFacts) -> bool:
    """True if a link is down that is part of a fabric or leads to an NVSwitch, was up before, or is up at a peer.

    A GPU may have no bridge, or one that uses some links only (H100 PCIe: 12 of 18); a partitioned
    (MIG-enabled) GPU uses none, and the driver may turn them off. All GPUs at NVSwitches use the same number of
    links.
    """
    if _is_partitioned(facts):
        return False
    if facts.peer_links:
        active = facts.reading(n.NVLINK_ACTIVE)
        # Only of a GPU that answers: of another one, nothing is known about its links.
        if active is Absent.UNSUPPORTED and not _answers(facts):
            raise health_facts.AbsentFact(active)
        if active is Absent.UNSUPPORTED or health_facts.require_value(active) < facts.peer_links:
            return True
    states = facts.parts(n.NVLINK_STATE)
    if not health_facts.any_holds(states.values(), lambda state: state == n.NVLINK_INACTIVE):
        return False
    down = [part for part, state in states.items() if state == n.NVLINK_INACTIVE]
    return _should_be_up(facts) or any(_has_carried(facts, part) for part in down)


def _answers(facts: health_facts.HealthFacts) -> bool:
    pulses = (driver_rules.has_readings(facts, source) for source in driver_rules.PRESENCE_METRICS)
    return any(pulse is True for pulse in pulses)


def _has_carried(facts: health_facts.HealthFacts, link: health_facts.DevicePart) -> bool:
    """True if the link has carried bytes since the driver was loaded."""
    counts = [facts.reading(metric, *link) for metric in _CARRIED]
    if any(not isinstance(count, Absent) and count > 0 for count in counts):
        return True
    # Only after a search for traffic: one counter that has moved is evidence, whatever the others are.
    for count in counts:
        if isinstance(count, Absent) and count is not Absent.UNSUPPORTED:
            raise health_facts.AbsentFact(count)
    return False


def _should_be_up(facts: health_facts.HealthFacts) -> bool:
    fabric = facts.reading(h.GPU_FABRIC_STATE)
    # GPUs before Hopper do not report the fabric; the fabric manager of the node trains their links to the switches.
    if facts.has_switches:
        return True
    if fabric is Absent.UNSUPPORTED:
        return False
    return health_facts.require_value(fabric) != _NOT_SUPPORTED


def _is_partitioned(facts: health_facts.HealthFacts) -> bool:
    return facts.reading(s.GPU_MIG_MODE) == 1


def _has_recovered(facts: health_facts.HealthFacts) -> bool:
    recoveries = [facts.change(n.NVLINK_RECOVERIES, *p) for p in facts.parts(n.NVLINK_RECOVERIES)]
    return health_facts.any_holds(
        [*_error_increases(facts, *RECOVERING), *recoveries], rule.has_increased
    )


def _has_high_crc_rate(facts: health_facts.HealthFacts) -> bool:
    """Test the sum over all links for each kind separately, as DCGM counts them."""

    def fast(kind: str) -> bool:
        changes = _error_increases(facts, kind)
        known = (c for c in changes if isinstance(c, health_facts.CounterIncrease))
        # Most are zero: fractions are slow to add.
        rate = sum(filter(None, (change.rate(SECOND_NS) for change in known)))
        # A sum of the known links that is high enough is certain; a lower one may miss an absent link.
        return rate >= CRC_PER_SECOND or health_facts.require_all(changes)

    return health_facts.any_holds(CRC, fast)


def _error_increases(
    facts: health_facts.HealthFacts, *kinds: str
) -> list[health_facts.CounterIncrease | Absent]:
    """Return the increase of errors of these kinds for each link."""
    parts = facts.parts(n.NVLINK_ERRORS)
    return [facts.change(n.NVLINK_ERRORS, *part) for part in parts if part[1] in kinds]


def _has_many_bit_errors(facts: health_facts.HealthFacts) -> bool:
    parts = facts.parts(n.NVLINK_BIT_ERRORS).items()
    effective = (reading for (_, stage), reading in parts if stage == "effective")
    limit = WORST_BIT_ERROR_DECADES / n.NVLINK_BIT_ERRORS.scale
    return health_facts.any_holds(effective, lambda decades: decades < limit)


LINK_RULES = (
    rule.HealthRule("fabric_not_joined", rule.FAILED, _has_not_joined,
        "the GPU belongs to an NVLink fabric, as a joined GPU of its model on the node does, and has not joined it, or failed to",
        "nvml.h, nvmlGpuFabricState_t: CUDA starts only once it is completed",
        metrics=(h.GPU_FABRIC_STATE, h.GPU_FABRIC_STATUS, s.GPU_MIG_MODE)),
    rule.HealthRule("fabric_unhealthy", rule.FAILED, rule.in_state(h.GPU_FABRIC_HEALTH, "unhealthy"),
        "the driver reports the GPU's fabric health as unhealthy",
        "nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY",
        metrics=(h.GPU_FABRIC_HEALTH,)),
    rule.HealthRule("fabric_limited", rule.DEGRADED, rule.in_state(h.GPU_FABRIC_HEALTH, "limited_capacity"),
        "the driver reports the GPU's fabric health as limited in capacity",
        "nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY",
        metrics=(h.GPU_FABRIC_HEALTH,)),
    rule.HealthRule("fabric_condition", rule.DEGRADED, rule.any_nonzero(h.GPU_FABRIC_CONDITION),
        "a fault of the fabric at this GPU: bandwidth, routes, partition, fabric manager",
        "nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*",
        metrics=(h.GPU_FABRIC_CONDITION,)),
    rule.HealthRule("nvlink_down", rule.FAILED, _is_down,
        "an NVLink is down that carried traffic since the driver was loaded, or belongs to a fabric or to the NVSwitches of the node; or fewer links to NVSwitches are up than on another GPU of the model",
        f"{_DCGM}: DCGM_FR_NVLINK_DOWN fails",
        actions=_RESET, sources=(rule.NVLINK, rule.HEALTH), metrics=(n.NVLINK_STATE, n.NVLINK_ACTIVE, h.GPU_FABRIC_STATE, s.GPU_MIG_MODE, *_CARRIED, *chain.from_iterable(driver_rules.PRESENCE_METRICS.values()))),
    rule.HealthRule("nvlink_recovering", rule.FAILED, _has_recovered,
        "a replay or a recovery of an NVLink within ten minutes",
        f"{_DCGM}: any increase fails (DCGM_FR_NVLINK_ERROR_CRITICAL)",
        actions=_RESET, sources=(rule.NVLINK,), metrics=(n.NVLINK_ERRORS, n.NVLINK_RECOVERIES), compares_readings=True),
    rule.HealthRule("nvlink_crc", rule.DEGRADED,
        lambda facts: health_facts.any_holds(_error_increases(facts, *CRC), rule.has_increased),
        "a CRC error of an NVLink within ten minutes",
        f"{_DCGM}: any increase warns (DCGM_FR_NVLINK_ERROR_THRESHOLD)",
        sources=(rule.NVLINK,), metrics=(n.NVLINK_ERRORS,), compares_readings=True),
    rule.HealthRule("nvlink_crc_rate", rule.FAILED, _has_high_crc_rate,
        f"{CRC_PER_SECOND} or more CRC errors per second over the NVLinks of the GPU, for a minute",
        f"{_DCGM}: DCGM_LIMIT_MAX_NVLINK_CRC_ERROR fails",
        actions=_RESET, sources=(rule.NVLINK,), metrics=(n.NVLINK_ERRORS,), compares_readings=True),
    rule.HealthRule("nvlink_bit_errors", rule.FAILED, _has_many_bit_errors,
        f"an effective bit error ratio of an NVLink above 1e-{WORST_BIT_ERROR_DECADES}",
        f"{_DCGM}: effective BER above 1e-12 fails",
        actions=_RESET, sources=(rule.NVLINK_SIGNAL,), metrics=(n.NVLINK_BIT_ERRORS,), is_needed=False),
)  # fmt: skip
