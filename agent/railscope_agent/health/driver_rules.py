"""Rules about the driver's reports on a GPU, and about a driver that does not respond.

Sources: nvml.h (NVML_ERROR_GPU_IS_LOST, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION); NVIDIA's Xid catalogue, by
`railscope.catalog.xids`.
"""

from __future__ import annotations

from functools import partial

from railscope.catalog import declare, gpu as c, gpu_health as h
from railscope.catalog.xids import recovery_action, xid
from railscope.reading import Absent
from railscope_agent.health import health_facts, rule
from railscope_agent.streams.start_reasons import find_remedy
from railscope_agent.streams.xid_matcher import ActionableXid

PRESENCE_METRICS: dict[str, tuple[declare.Metric, ...]] = {
    rule.LOAD: (c.GPU_POWER, c.GPU_TEMPERATURE, c.GPU_MEMORY_TOTAL),
    rule.HEALTH: (c.GPU_PERFORMANCE_STATE, h.GPU_PCIE_WIDTH, h.GPU_PCIE_GENERATION),
}
"""Readings by source that a GPU has for as long as it is present."""
_LOST, _NOT_INITIALIZED = xid(79), xid(143)
_UNRESPONSIVE_REASONS = {Absent.TIMEOUT, Absent.ERROR, Absent.DENIED}
_DRIVER, _, _, _, _MISSING = h.GPU_DEVICE_STATE.states
_NO_ACTION = 0


def _is_lost(facts: health_facts.HealthFacts) -> bool:
    """Return True if NVML listed its GPUs without it, or if both sources report it.

    One source may have been read while the driver was unloaded. If NVML lists no GPU, none of them has a frame.
    """
    pulses = [has_readings(facts, source) for source in PRESENCE_METRICS]
    if facts.device_state == _MISSING and True not in pulses:
        return True
    if all(pulse is Absent.GONE for pulse in pulses):
        return PRESENCE_METRICS.keys().isdisjoint(facts.absent_sources) or _is_lost_by_nvml(facts)
    alive = True in pulses
    for pulse in pulses:
        if isinstance(pulse, Absent) and not (alive and pulse is Absent.UNSUPPORTED):
            raise health_facts.AbsentFact(pulse)
    return False


def has_readings(facts: health_facts.HealthFacts, source: str) -> bool | Absent:
    """True if a source has any reading of the GPU, else the reason for which it has none."""
    if source in facts.absent_sources:
        return facts.absent_sources[source]
    absent: list[Absent] = []
    for metric in PRESENCE_METRICS[source]:
        reading = facts.reading(metric)
        if not isinstance(reading, Absent):
            return True
        absent.append(reading)
    broken = (reason for reason in absent if reason is not Absent.UNSUPPORTED)
    return next(broken, Absent.UNSUPPORTED)


def _is_lost_by_nvml(facts: health_facts.HealthFacts) -> bool:
    """True if a GPU that NVML no longer lists is gone from the bus."""
    state = facts.device_state
    if state == _DRIVER:  # as before: the bus has not been scanned since
        raise health_facts.AbsentFact(Absent.NOT_DUE)
    if isinstance(state, Absent) and state is not Absent.GONE:
        raise health_facts.AbsentFact(state)
    return state is Absent.GONE


def _is_unresponsive(facts: health_facts.HealthFacts) -> bool:
    reasons = [
        facts.absent_sources[source]
        for source in (rule.LOAD, rule.HEALTH, rule.NVLINK)
        if source in facts.absent_sources
    ]
    if any(reason in _UNRESPONSIVE_REASONS for reason in reasons):
        return True
    pulses = {has_readings(facts, source) for source in PRESENCE_METRICS}
    # Every GPU has readings of power, memory, state or link: if NVML supports none, the driver does not answer about it.
    knows_nothing = pulses == {Absent.UNSUPPORTED} and PRESENCE_METRICS.keys().isdisjoint(
        facts.absent_sources
    )
    if pulses <= _UNRESPONSIVE_REASONS or knows_nothing:
        return True
    if Absent.NOT_DUE in reasons:
        raise health_facts.AbsentFact(Absent.NOT_DUE)
    return False


def _has_start_reason(facts: health_facts.HealthFacts) -> bool:
    return bool(find_remedy(facts.init_failure))


def _describe_start_reason(facts: health_facts.HealthFacts) -> str:
    return f"{facts.init_failure.rstrip('.')}; fix: {find_remedy(facts.init_failure)}"


def _recovery_test(*, may_finish: bool) -> rule.FaultTest:
    def test(facts: health_facts.HealthFacts) -> bool:
        value = facts.number(h.GPU_RECOVERY_ACTION)
        return value != _NO_ACTION and (recovery_action(value).severity != "fatal") is may_finish

    return test


def _recovery_actions(facts: health_facts.HealthFacts) -> rule.RequiredActions:
    action = recovery_action(facts.number(h.GPU_RECOVERY_ACTION))
    return rule.RequiredActions(action.actions, (action.nvidia,))


def _describe_recovery(facts: health_facts.HealthFacts) -> str:
    return f"the driver requires {', '.join(_recovery_actions(facts).nvidia)}"


def _xid_test(*, fatal: bool) -> rule.FaultTest:
    def test(facts: health_facts.HealthFacts) -> bool:
        # A reported Xid remains a fault while the log cannot be read: only the statement that there is none
        # requires it.
        if _select_xids(facts, fatal=fatal):
            return True
        if rule.KERNEL_LOG in facts.absent_sources:
            raise health_facts.AbsentFact(facts.absent_sources[rule.KERNEL_LOG])
        return False

    return test


def _select_xids(facts: health_facts.HealthFacts, *, fatal: bool) -> list[ActionableXid]:
    return [reported for reported in facts.xids if reported.is_fatal is fatal]


def _describe_xids(facts: health_facts.HealthFacts, *, fatal: bool) -> str:
    """Return each Xid with its name and meaning."""
    reports = _select_xids(facts, fatal=fatal)
    return " ".join(
        dict.fromkeys(report.line or _describe_xid(report.number) for report in reports)
    )


def _describe_xid(number: int) -> str:
    entry = xid(number)
    return f"Xid {number} {entry.name}: {entry.meaning}"


def _xid_actions(facts: health_facts.HealthFacts, *, fatal: bool) -> rule.RequiredActions:
    xids = _select_xids(facts, fatal=fatal)
    actions = {action for reported in xids for action in reported.judgement.actions}
    texts = (
        reported.judgement.nvidia
        if reported.line
        else f"Xid {reported.number}: {reported.judgement.nvidia}".removesuffix(": ")
        for reported in xids
    )
    return rule.RequiredActions(tuple(actions), tuple(texts))


DRIVER_RULES = (
    rule.HealthRule("gpu_lost", rule.FAILED, _is_lost,
        "NVML reports the GPU as lost, or does not list it although it was not removed",
        "nvml.h, NVML_ERROR_GPU_IS_LOST; action as for Xid 79",
        actions=rule.RequiredActions(_LOST.actions, (_LOST.immediate,)), sources=(),
        metrics=(*PRESENCE_METRICS[rule.LOAD], *PRESENCE_METRICS[rule.HEALTH])),
    rule.HealthRule("reset_required", rule.FAILED, lambda facts: facts.needs_reset,
        "NVML reports that the GPU, or one of its MIG devices, must be reset before it can be used again",
        "nvml.h, NVML_ERROR_RESET_REQUIRED",
        actions=rule.RequiredActions(("drain", "reset_gpu"), ("RESET_GPU",)), sources=()),
    rule.HealthRule("driver_unsuitable", rule.FAILED, _has_start_reason,
        "the driver states why it does not start the GPU: its modules or its branch do not support the GPU, or the GSP "
        "firmware is missing or of another version",
        "kernel log, NVRM: ... not supported by / No firmware image found / firmware image version mismatch",
        describe=_describe_start_reason, sources=()),
    rule.HealthRule("not_initialized", rule.FAILED, lambda facts: bool(facts.init_failure) and not _has_start_reason(facts),
        "the driver failed to start the GPU, and no reading of it has succeeded since",
        "kernel log, NVRM: ... RmInitAdapter failed / probe of ... failed; action as for Xid 143",
        actions=rule.RequiredActions(_NOT_INITIALIZED.actions, (_NOT_INITIALIZED.immediate,)), sources=()),
    rule.HealthRule("driver_unresponsive", rule.UNKNOWN, _is_unresponsive,
        "a source of the GPU's readings has failed or is stale, or the GPU does not respond",
        "Railscope: a GPU without readings is neither known to be broken nor known to be healthy",
        sources=()),
    rule.HealthRule("recovery_action", rule.FAILED, _recovery_test(may_finish=False),
        "the driver requires a reset of GPU or bus, or a reboot",
        "nvml.h, nvmlDeviceGpuRecoveryAction_t",
        actions=_recovery_actions, describe=_describe_recovery, metrics=(h.GPU_RECOVERY_ACTION,)),
    rule.HealthRule("recovery_drain", rule.DEGRADED, _recovery_test(may_finish=True),
        "the driver requires a reset after running processes have finished, or a new IMEX domain",
        "nvml.h, nvmlDeviceGpuRecoveryAction_t",
        actions=_recovery_actions, describe=_describe_recovery, metrics=(h.GPU_RECOVERY_ACTION,)),
    rule.HealthRule("xid_fatal", rule.FAILED, _xid_test(fatal=True),
        "a fatal Xid since the last reset of the GPU, load of its driver, or recovery reported by it",
        "Xid catalogue, and the text of the message",
        actions=partial(_xid_actions, fatal=True), describe=partial(_describe_xids, fatal=True), sources=(), is_needed=False),
    rule.HealthRule("xid_action", rule.DEGRADED, _xid_test(fatal=False),
        "an Xid since then that is not known to be fatal, but requires more than a restart of the application",
        "Xid catalogue, and the text of the message",
        actions=partial(_xid_actions, fatal=False), describe=partial(_describe_xids, fatal=False), sources=(), is_needed=False),
)  # fmt: skip
