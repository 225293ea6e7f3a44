"""Rules about the driver's reports on a GPU, and about a driver that does not respond.

Sources: nvml.h (NVML_ERROR_GPU_IS_LOST, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION); NVIDIA's Xid catalogue, by
`railscope.catalog.xids`.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.health.facts import Facts, Untold
from agent.health.rule import (
    DEGRADED,
    FAILED,
    HEALTH,
    KERNEL_LOG,
    LOAD,
    NVLINK,
    UNKNOWN,
    Asked,
    Rule,
    Tell,
)
from agent.streams.xid_book import JudgedXid
from railscope.catalog import gpu as c
from railscope.catalog import gpu_health as h
from railscope.catalog import gpu_pcie
from railscope.catalog.declare import Metric
from railscope.catalog.xids import RECOVERY_ACTIONS, xid
from railscope.reading import Absent

PULSE: dict[str, tuple[Metric, ...]] = {
    LOAD: (c.GPU_POWER, c.GPU_TEMPERATURE, c.GPU_MEMORY_TOTAL),
    HEALTH: (c.GPU_PERFORMANCE_STATE, gpu_pcie.GPU_PCIE_WIDTH, gpu_pcie.GPU_PCIE_GENERATION),
}
"""By source, readings that a GPU has for as long as it is present."""
_LOST = xid(79)
_FIRMWARE_SILENT = {119, 120}
"""The GPU's system processor (GSP) did not respond, or failed: every call ends in a timeout."""
_SILENCE = {Absent.TIMEOUT, Absent.ERROR, Absent.DENIED}
_DRIVER, _, _, _, _MISSING = h.GPU_DEVICE_STATE.states
_NO_ACTION = 0
_MAY_FINISH = {3, 4, 5}
"""Drain P2P, drain and reset, recover the IMEX domain: running jobs may finish."""


def _gone(facts: Facts) -> bool:
    """Return True if both sources report it: one may have been read while the driver was unloaded."""
    pulses = [_pulse(facts, source) for source in PULSE]
    if all(pulse is Absent.GONE for pulse in pulses):
        return PULSE.keys().isdisjoint(facts.silent) or _left_behind(facts)
    alive = True in pulses
    for pulse in pulses:
        if isinstance(pulse, Absent) and not (alive and pulse is Absent.UNSUPPORTED):
            raise Untold(pulse)
    return False


def _pulse(facts: Facts, source: str) -> bool | Absent:
    """True if a source has any reading of the GPU, else the reason for which it has none."""
    if source in facts.silent:
        return facts.silent[source]
    readings = [facts.reading(metric) for metric in PULSE[source]]
    absent = [reading for reading in readings if isinstance(reading, Absent)]
    if len(absent) < len(readings):
        return True
    broken = (reason for reason in absent if reason is not Absent.UNSUPPORTED)
    return next(broken, Absent.UNSUPPORTED)


def _left_behind(facts: Facts) -> bool:
    """True if a GPU that NVML no longer lists is still bound to its driver, or is gone from the bus."""
    state = facts.device_state
    if state == _DRIVER:  # as before: the bus has not been scanned since
        raise Untold(Absent.NOT_DUE)
    if isinstance(state, Absent) and state is not Absent.GONE:
        raise Untold(state)
    return state in {_MISSING, Absent.GONE}


def firmware_is_silent(xids: Iterable[JudgedXid]) -> bool:
    """True if Xids indicate a GPU that is still on the bus and no longer responds to the driver."""
    numbers = {told.number for told in xids}
    return bool(numbers & _FIRMWARE_SILENT) and _LOST.number not in numbers


def _silent(facts: Facts) -> bool:
    reasons = [facts.silent[source] for source in (LOAD, HEALTH, NVLINK) if source in facts.silent]
    if any(reason in _SILENCE for reason in reasons):
        return True
    if all(_pulse(facts, source) in _SILENCE for source in PULSE):
        return True
    if Absent.NOT_DUE in reasons:
        raise Untold(Absent.NOT_DUE)
    return False


def _recovery(*, may_finish: bool) -> Tell:
    def tell(facts: Facts) -> bool:
        action = facts.number(h.GPU_RECOVERY_ACTION)
        return action != _NO_ACTION and (action in _MAY_FINISH) is may_finish

    return tell


def _recovery_asks(facts: Facts) -> Asked:
    """Return the actions of the table; for an action of a newer driver, its number."""
    value = facts.number(h.GPU_RECOVERY_ACTION)
    action = RECOVERY_ACTIONS.get(value)
    return Asked(action.actions, (action.nvidia,)) if action else Asked((), (f"0x{value:x}",))


def _recovery_says(facts: Facts) -> str:
    return f"the driver asks for {', '.join(_recovery_asks(facts).nvidia)}"


def _told(*, fatal: bool) -> Tell:
    def tell(facts: Facts) -> bool:
        if _xids(facts, fatal=fatal):
            return True
        if KERNEL_LOG in facts.silent:
            raise Untold(facts.silent[KERNEL_LOG])
        return False

    return tell


def _xids(facts: Facts, *, fatal: bool) -> list[JudgedXid]:
    return [told for told in facts.xids if told.fatal is fatal]


def _xid_says(facts: Facts, *, fatal: bool) -> str:
    """Return each Xid with its name and meaning."""
    entries = (xid(told.number) for told in _xids(facts, fatal=fatal))
    return " ".join(
        dict.fromkeys(f"Xid {entry.number} {entry.name}: {entry.meaning}" for entry in entries)
    )


def _xid_asks(facts: Facts, *, fatal: bool) -> Asked:
    found = _xids(facts, fatal=fatal)
    actions = {action for told in found for action in told.judgement.actions}
    words = (f"Xid {told.number}: {told.judgement.nvidia}".removesuffix(": ") for told in found)
    return Asked(tuple(actions), tuple(words))


RULES = (
    Rule(
        reason="gpu_lost",
        state=FAILED,
        when="NVML calls the GPU lost, or does not tell of it though nobody took it away",
        origin="nvml.h, NVML_ERROR_GPU_IS_LOST; action as for Xid 79",
        tell=_gone,
        asks=Asked(_LOST.actions, (_LOST.immediate,)),
        sources=(),
        metrics=(*PULSE[LOAD], *PULSE[HEALTH]),
    ),
    Rule(
        reason="driver_unresponsive",
        state=UNKNOWN,
        when="a source of the GPU's readings has failed or is too old, or the GPU gives no answer",
        origin="ours: what does not answer is not known to be broken, nor to be well",
        tell=_silent,
        asks=Asked(("inspect",)),
        sources=(),
    ),
    Rule(
        reason="recovery_action",
        state=FAILED,
        when="the driver asks for a reset of GPU or bus, or for a reboot",
        origin="nvml.h, nvmlDeviceGpuRecoveryAction_t",
        tell=_recovery(may_finish=False),
        asks=_recovery_asks,
        says=_recovery_says,
        metrics=(h.GPU_RECOVERY_ACTION,),
    ),
    Rule(
        reason="recovery_drain",
        state=DEGRADED,
        when="the driver asks for the same once what runs has finished, or for a new IMEX domain",
        origin="nvml.h, nvmlDeviceGpuRecoveryAction_t",
        tell=_recovery(may_finish=True),
        asks=_recovery_asks,
        says=_recovery_says,
        metrics=(h.GPU_RECOVERY_ACTION,),
    ),
    Rule(
        reason="xid_fatal",
        state=FAILED,
        when="a fatal Xid since the last reset of the GPU, load of its driver, or all-clear of it",
        origin="Xid catalogue, and what the message says",
        tell=_told(fatal=True),
        asks=lambda facts: _xid_asks(facts, fatal=True),
        says=lambda facts: _xid_says(facts, fatal=True),
        sources=(),
        needed=False,
    ),
    Rule(
        reason="xid_action",
        state=DEGRADED,
        when="an Xid since then that is not known to be fatal, but asks for more than a restart of the application",
        origin="Xid catalogue, and what the message says",
        tell=_told(fatal=False),
        asks=lambda facts: _xid_asks(facts, fatal=False),
        says=lambda facts: _xid_says(facts, fatal=False),
        sources=(),
        needed=False,
    ),
)
