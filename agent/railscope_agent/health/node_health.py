"""Health of the GPUs and NICs of a running agent's node, for the verdict that schedulers act on.

It follows from readings that exist: a request reads no device. The GPUs are those of the last frame of the source
`gpu_verdict`. NICs are judged by the rules about links and PCIe paths: congestion and settings concern the network and
all of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from railscope import health_verdict as verdicts
from railscope.catalog import entities, gpu_health as h
from railscope.catalog.event_titles import in_words
from railscope.frame import Entity, Frame
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent.health import RULES, judge, rule
from railscope_agent.health.fact_collector import FactCollector
from railscope_agent.health.nic_link_rules import LINK_RULES, PCIE_RULES
from railscope_agent.sampling.status import SourceState, latest_frame

NIC_RULES = (*PCIE_RULES, *LINK_RULES)
GPU_SOURCE, DEVICE_SOURCE = "gpu_verdict", "gpu_device"
ADD_PERIOD_NS = 10 * SECOND_NS
"""Time between two frames of a source whose counters are followed: every frame would cost more than the verdict needs."""
_RULES = {each.reason: each for each in RULES}
_ACTIONS = h.GPU_ACTION.states
_UNREADABLE = ("unbound", "other_driver")
"""States of GPUs of this node of which nothing can be read; those of virtual machines are not its own."""


class NodeHealth:
    """Follows the frames of an agent, and judges its devices on request."""

    def __init__(
        self,
        statuses: Callable[[], Mapping[str, SourceState]],
        take_frames: Callable[[], None] = lambda: None,
    ) -> None:
        self._statuses = statuses
        self._take_frames = take_frames
        self._facts = FactCollector(NIC_RULES)

    def observe(self, frame: Frame) -> None:
        """Process a frame, unless one of its source with the same columns is recent."""
        source = self._facts.sources.get(frame.schema.stream)
        before = source.frame if source else None
        age_ns = frame.timestamp.boot_ns - before.timestamp.boot_ns if before else 0
        # A frame with other columns is processed at once: it has other devices.
        if not (before and before.schema is frame.schema and 0 <= age_ns < ADD_PERIOD_NS):
            self._facts.add(frame)

    def judge(self, now_ns: int, gpus: Collection[str] | None, job: str) -> verdicts.NodeVerdict:
        """Return the verdict on all devices, or on GPUs of a job by UUID with the NICs of their rails."""
        self._take_frames()
        statuses = self._statuses()
        frame = latest_frame(statuses.get(GPU_SOURCE), now_ns)
        if isinstance(frame, Frame):
            found = _judge_gpus(frame)
        else:
            found = [] if frame is Absent.UNSUPPORTED else [_unjudged_gpu(frame.label, index="all")]
        if gpus is None:
            devices = latest_frame(statuses.get(DEVICE_SOURCE), now_ns)
            judged_addresses = {gpu.pci_address for gpu in found}
            unreadable = _unreadable_gpus(devices) if isinstance(devices, Frame) else ()
            found += [gpu for gpu in unreadable if gpu.pci_address not in judged_addresses]
        else:
            judged = {gpu.name for gpu in found}
            found = [gpu for gpu in found if gpu.name in gpus]
            found += [_unjudged_gpu("gone", name=gpu) for gpu in sorted(set(gpus) - judged)]
        # A GPU without a rail has no NIC of its own.
        rails = None if gpus is None else {gpu.rail for gpu in found} - {""}
        found += [nic for nic in self._judge_nics(now_ns) if rails is None or nic.rail in rails]
        return verdicts.node_verdict(found, rule.ACTIONS_BY_SEVERITY, job)

    def _judge_nics(self, now_ns: int) -> list[verdicts.DeviceVerdict]:
        self._facts.update(self._statuses(), now_ns)
        found = []
        for name, facts in self._facts.nics().items():
            verdict = judge(facts, NIC_RULES)
            state = _state_name(verdict.state)
            absences = (f"{reason} ({why.label})" for reason, why in verdict.missing.items())
            reasons = _sort_reasons(verdict.reasons, {each.reason: each for each in NIC_RULES})
            reasons += absences if state == verdicts.UNKNOWN else ()
            action = verdict.actions[-1] if verdict.actions else ""
            found.append(
                verdicts.DeviceVerdict(
                    kind="NIC",
                    name=name,
                    state=state,
                    pci_address=facts.labels.get("pci_address", ""),
                    rail=facts.labels.get("rail", ""),
                    reasons=tuple(reasons),
                    action=action,
                    fault=in_words(next(iter(reasons), "")),
                    advice=h.ACTIONS.get(action, ""),
                )
            )
        return found


def _judge_gpus(frame: Frame) -> list[verdicts.DeviceVerdict]:
    """Return the verdicts of a frame of the source `gpu_verdict`; a GPU that was taken away has none."""
    rows: dict[str, tuple[Entity, dict[str, Reading]]] = {}
    for metric, entity, reading in frame.readings():
        if entity.kind is entities.GPU:
            rows.setdefault(entity.key[0], (entity, {}))[1][metric.name] = reading
        else:
            rows[entity.key[0]][1][entity.key[-1]] = reading
    return [
        _judge_gpu(entity, readings)
        for entity, readings in rows.values()
        if readings[h.GPU_HEALTH.name] is not Absent.GONE
    ]


def _judge_gpu(gpu: Entity, readings: Mapping[str, Reading]) -> verdicts.DeviceVerdict:
    health, action = readings[h.GPU_HEALTH.name], readings[h.GPU_ACTION.name]
    state = verdicts.UNKNOWN if isinstance(health, Absent) else _state_name(health)
    active = [name for name in _RULES if readings.get(name) == 1]
    reasons = h.by_cause(active)
    if state == verdicts.UNKNOWN and not reasons:
        reasons = [
            f"{name} ({reading.label})"
            for name, each in _RULES.items()
            if each.is_needed
            and isinstance(reading := readings.get(name), Absent)
            and reading is not Absent.UNSUPPORTED
        ]
    name = "" if isinstance(action, Absent) else _ACTIONS[action].replace("none", "")
    return verdicts.DeviceVerdict(
        kind="GPU",
        name=gpu.key[0],
        state=state,
        index=gpu.facts.get("index", ""),
        pci_address=gpu.facts.get("pci_address", ""),
        rail=gpu.facts.get("rail", ""),
        reasons=tuple(reasons),
        action=name,
        fault=h.event_reasons_text(next(iter(reasons), "")),
        advice=h.ACTIONS.get(name, ""),
    )


def _unreadable_gpus(frame: Frame) -> list[verdicts.DeviceVerdict]:
    """Return the verdicts on GPUs on the PCI bus that the NVIDIA driver does not own, as if it is not loaded."""
    names = h.GPU_DEVICE_STATE.states
    return [
        _unjudged_gpu(names[reading], pci_address=entity.key[0])
        for metric, entity, reading in frame.readings()
        if metric.name == h.GPU_DEVICE_STATE.name
        and not isinstance(reading, Absent)
        and names[reading] in _UNREADABLE
    ]


def _unjudged_gpu(
    problem: str, name: str = "", index: str = "", pci_address: str = ""
) -> verdicts.DeviceVerdict:
    """Return the verdict on a GPU, or all, without readings."""
    return verdicts.DeviceVerdict(
        kind="GPU",
        name=name,
        state=verdicts.UNKNOWN,
        index=index,
        pci_address=pci_address,
        reasons=(f"no_verdict ({problem})",),
        fault=in_words(f"no_verdict ({problem})"),
    )


def _state_name(state: int) -> verdicts.HealthState:
    names = (verdicts.UNKNOWN, verdicts.HEALTHY, verdicts.DEGRADED, verdicts.FAILED)
    return dict(zip((rule.UNKNOWN, rule.HEALTHY, rule.DEGRADED, rule.FAILED), names, strict=True))[
        state
    ]


def _sort_reasons(reasons: Collection[str], rules: Mapping[str, rule.HealthRule]) -> list[str]:
    """Return reasons with those of the worst state first, otherwise in the order of the rules."""
    return sorted(
        reasons, key=lambda reason: verdicts.ORDER.index(_state_name(rules[reason].state))
    )
