"""Detectors of GPUs that report their fault: lost, unresponsive, memory, NVLink, heat, power."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from railscope.catalog.xids import Judgement, judge, xid
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats, median, or_zero

_CLASS_OF_XID = {
    79: "gpu_lost",
    48: "ecc_uncorrectable",
    94: "ecc_uncorrectable",
    95: "ecc_uncorrectable",
    63: "row_remap",
    64: "row_remap",
    74: "nvlink_errors",
    **dict.fromkeys(range(144, 151), "nvlink_errors"),
    119: "gpu_unresponsive",
    120: "gpu_unresponsive",
}
"""Classes of the errors that the driver reports (docs/xids.md)."""
_RECOVERY_CHANGED = 154
_STATED_BY_TEXT = frozenset({*range(144, 151), _RECOVERY_CHANGED})
"""Xids whose text alone states whether the hardware needs attention: errors of NVLink 5, and recovery actions."""

USED_EVENTS = frozenset({"xid", "gpu_lost"})
_MISSING_STATE = 4
MIN_MODEL_GPUS = 4
MAX_XID_DIGITS = 6
RECOVERY_NS = 60 * SECOND_NS
"""The driver determines the recovery action seconds after the error."""
XID_STRENGTH = 0.5
"""Strength of an Xid; a counter or a state of the GPU counts more."""
ANSWER_SLOTS, NVLINK_SLOTS = 2, 6
"""Slots without an answer of the driver, and those in which an NVLink must have errors again and again."""
ERROR_STRENGTH = 0.8
"""An uncorrectable error is reported once; the row that waits for its remap afterwards is its effect."""


class _ReportedError(NamedTuple):
    """Error of a GPU as the driver reported it."""

    position: int
    number: int
    judged: Judgement
    timestamp_ns: int

    @property
    def class_name(self) -> str:
        """Class of the incident."""
        return _CLASS_OF_XID.get(self.number, "xid_event")


def xid_events(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the GPUs of which the driver reported an error of the hardware."""
    errors = list(_reported_errors(view))
    for error in errors:
        if error.number == _RECOVERY_CHANGED and _follows_error(view, error, errors):
            continue
        name = error.class_name
        is_fatal = name == "xid_event" and error.judged.severity == "fatal"
        evidence = findings.Compared(f"xid {error.number}", 1.0, 0.0, findings.EVENT, slots=0)
        yield findings.Finding(
            name,
            findings.Cause("gpu", error.position),
            evidence.of_gpus(view, [error.position]),
            ERROR_STRENGTH if name == "ecc_uncorrectable" else XID_STRENGTH,
            severity="critical" if is_fatal else "",
            onset_ns=error.timestamp_ns,
        )


def _reported_errors(view: findings.DiagnosisView) -> Iterator[_ReportedError]:
    for node_event in view.events:
        event, key = node_event.event, node_event.event.entity.key
        node = view.devices.nodes.get(node_event.node)
        if event.name not in USED_EVENTS or node is None or not key:
            continue
        position, number = node.gpu_by_address.get(key[0], -1), 79
        if event.name == "xid":
            text = key[1] if len(key) > 1 else ""
            number = int(text) if text.isdecimal() and len(text) <= MAX_XID_DIGITS else -1
        judged = judge(number, event.facts.get("message", ""))
        if position >= 0 and number >= 0 and _is_of_hardware(number, judged):
            yield _ReportedError(position, number, judged, node_event.timestamp_ns)


def _is_of_hardware(number: int, judged: Judgement) -> bool:
    if number in _STATED_BY_TEXT:
        return judged.severity == "fatal" or judged.actions != ("ignore",)
    return number in _CLASS_OF_XID or xid(number).error_class == "hardware"


def _follows_error(
    view: findings.DiagnosisView, recovery: _ReportedError, errors: Sequence[_ReportedError]
) -> bool:
    """True if a recovery action is that for an error of a class of its own, which the driver reported before."""
    starts = [
        error.timestamp_ns
        for error in errors
        if error.position == recovery.position and error.class_name != "xid_event"
    ]
    cause = findings.Cause("gpu", recovery.position)
    open_faults = (view.open_faults.get((name, cause)) for name in set(_CLASS_OF_XID.values()))
    starts += [fault.onset_ns for fault in open_faults if fault]
    return any(0 <= recovery.timestamp_ns - start <= RECOVERY_NS for start in starts)


MIN_GENERATION_USE = 0.1
"""Utilization above which the generation of the PCIe link of a GPU counts: an unused device saves power by a lower one."""


def reported_gpu_faults(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield GPUs whose counters, states or absence report a fault."""
    gpu, groups = view.signals.gpu, view.groups
    sums, slot = view.devices.sums[DeviceKind.GPU], view.signals.slot
    reason = sums.last("utilization_absence", slot, ANSWER_SLOTS)
    alive = ~np.isnan(sums.rate("utilization", slot, ANSWER_SLOTS))
    nodes = len(view.devices.node_names)
    answering = np.bincount(groups.gpu_node[alive], minlength=nodes)[groups.gpu_node]
    missing = gpu["device_state"] == _MISSING_STATE
    gone = (~alive & (reason == Absent.GONE.value)) | (missing & ~alive)
    # All GPUs of a node that no job uses: the driver was unloaded.
    gone &= (answering > 0) | (view.job_of_gpu >= 0)
    hung = ~alive & (reason == Absent.TIMEOUT.value)
    stuck = ~alive & (reason == Absent.RESET_REQUIRED.value)
    # The driver does not answer about them, or answers that they are gone: they have no value.
    for name, hit, absence in (
        ("gpu_lost", gone, "gone"),
        ("gpu_unresponsive", hung, "timeout"),
        ("gpu_unresponsive", stuck, "reset_required"),
    ):
        no_answer = findings.Compared("utilization", np.nan, np.nan, absence, ANSWER_SLOTS)
        yield from findings.of_devices(view, DeviceKind.GPU, name, hit, no_answer)
    often = findings.above(sums.total("nvlink_errors", slot, NVLINK_SLOTS), 0.0)
    if often.any():
        errors = sums.history("nvlink_errors", slot, NVLINK_SLOTS)
        has_value = ~np.isnan(errors)
        often = ((errors > 0) & has_value).sum(axis=0) > np.fmax(has_value.sum(axis=0) / 2, 2)
    often |= findings.above(gpu["nvlink_recoveries"], 0.0)
    of_links = findings.Compared("nvlink_errors", gpu["nvlink_errors"], 0.0, slots=NVLINK_SLOTS)
    yield from findings.of_devices(view, DeviceKind.GPU, "nvlink_errors", often, of_links)
    for signal, hit in zip(("pcie_width", "pcie_generation"), _degraded_links(view), strict=True):
        narrow = findings.Compared(signal, gpu[signal], 1.0)
        yield from findings.of_devices(view, DeviceKind.GPU, "pcie_degraded", hit, narrow)


def nics_of_degraded_links(view: findings.DiagnosisView) -> findings.Flags:
    """Return the NICs on the rails of GPUs with a degraded PCIe link, which they wait for."""
    degraded = np.flatnonzero(np.logical_or(*_degraded_links(view))).tolist()
    # A window of the NIC still has pauses after the link has recovered.
    lasting = (
        cause.position
        for name, cause in view.open_faults
        if name == "pcie_degraded" and cause.kind == "gpu"
    )
    gpus = [view.devices.gpus[position] for position in (*degraded, *lasting)]
    places = {(gpu.node, gpu.rail) for gpu in gpus}
    return np.array(
        [bool(nic.rail) and (nic.node, nic.rail) in places for nic in view.devices.nics], np.bool_
    )


def _degraded_links(view: findings.DiagnosisView) -> tuple[findings.Flags, findings.Flags]:
    """Return the GPUs with fewer PCIe lanes than usual, and the busy ones with a lower generation."""
    gpu = view.signals.gpu
    busy = findings.above(gpu["utilization"], MIN_GENERATION_USE)
    return _below_usual(view, gpu["pcie_width"]), busy & _below_usual(view, gpu["pcie_generation"])


def _below_usual(view: findings.DiagnosisView, values: Floats) -> findings.Flags:
    """Return the GPUs with less than the whole, unless most GPUs of their model have as little: on a board with fewer lanes."""
    below = findings.above(1.0 - values, 0.01)
    if not below.any():
        return below
    models = np.array([each.model for each in view.devices.gpus])
    usual = np.full(len(values), np.nan)
    for model in np.unique(models):
        of_model = values[(models == model) & ~np.isnan(values)]
        if len(of_model) >= MIN_MODEL_GPUS:
            usual[models == model] = median(of_model)
    return below & ~(values >= usual)


MIN_LIMITED, MIN_HOT_SHARE = 0.4, 0.5
"""Share of time in which heat or hardware limits the clock, and share of a node's GPUs from which on heat has a common cause."""
SLOW_CLOCK = 0.95
"""Share of the clock of its peers below which a GPU is slow."""
UNEXPLAINED_CLOCK = 0.9
"""Share of its usual clock below which a GPU that reports no reason is slow: GPUs of one model differ by less under the same limit of power."""


def slow_clocks(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield GPUs with a clock that is low because of heat, or because hardware forces it."""
    gpu = view.signals.gpu
    usual = _peer_clocks(view)
    slower = (gpu["clock"] < SLOW_CLOCK * usual) & ~(gpu["utilization"] <= MIN_CLOCK_USE)
    hot = findings.above(gpu["thermal_share"], MIN_LIMITED) & slower
    is_certain = gpu["clock"] < UNEXPLAINED_CLOCK * usual
    hot &= is_certain | findings.above(_shown_thermal_share(view), MIN_LIMITED)
    yield from _slowed(view, "thermal_straggler", hot, "thermal_share", MIN_HOT_SHARE)
    brake = findings.above(gpu["power_brake_share"], MIN_LIMITED)
    brake |= findings.above(gpu["slowdown_share"], MIN_LIMITED) & slower
    yield from _slowed(view, "hw_slowdown", brake & ~hot, "power_brake_share", 0.0)


def _shown_thermal_share(view: findings.DiagnosisView) -> Floats:
    """Return the share of time in which heat limits the clock, as counted, or of moments less the standard error of few."""
    sums, window = view.devices.sums[DeviceKind.GPU], (view.signals.slot, view.signals.window)
    share = np.minimum(sums.rate("thermal_active", *window), 1.0)
    readings = np.fmax(sums.weight("thermal_active", *window), 1)
    counted = view.signals.gpu["thermal_counted"]
    shown: Floats = np.fmax(counted, share - np.sqrt(share * (1 - share) / readings))
    return shown


def _slowed(
    view: findings.DiagnosisView, name: str, hit: findings.Flags, signal: str, min_share: float
) -> Iterator[findings.Finding]:
    """Yield the smallest unit with all GPUs that heat or hardware forces to a low clock: a GPU, a node, a rack.

    Nodes that are limited together have a common power supply, or cooling; GPUs of rack-scale systems report their chassis.
    Others are in one rack only if their NICs are in one pod.
    """
    racks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position in np.flatnonzero(hit).tolist():
        device = view.devices.gpus[position]
        rack = device.chassis or _first_leaf(view, int(view.groups.gpu_node[position]))
        racks[rack][device.node].append(position)
    shares = view.signals.gpu[signal]
    if name == "hw_slowdown":
        shares = np.fmax(shares, view.signals.gpu["slowdown_share"])
    for rack, nodes in racks.items():
        for cause, members in _units(view, rack, nodes, min_share):
            evidence = findings.Compared(signal, shares, MIN_LIMITED).of_gpus(view, members)
            parts = () if cause.kind == "gpu" else tuple(members)
            yield findings.Finding(name, cause, evidence, parts=parts)


def _units(
    view: findings.DiagnosisView, rack: str, nodes: dict[str, list[int]], min_share: float
) -> Iterator[tuple[findings.Cause, Sequence[int]]]:
    """Yield the units of a rack with slow GPUs; nodes with a larger share of them, or several of these nodes, are one.

    One GPU of several is slow by a cause of its own.
    """
    gpus = {name: len(view.devices.nodes[name].gpus) for name in nodes}
    minimums = {name: max(min_share * count, min(2, count)) for name, count in gpus.items()}
    whole = [name for name, members in nodes.items() if len(members) >= minimums[name]]
    if len(whole) > 1:
        parts = [position for name in whole for position in nodes.pop(name)]
        yield findings.Cause("rack", name=rack), parts
    for name, members in nodes.items():
        if name in whole and len(members) > 1:
            yield findings.Cause("node", name=name), members
        else:
            yield from ((findings.Cause("gpu", position), [position]) for position in members)


def _first_leaf(view: findings.DiagnosisView, node: int) -> str:
    """Return the first leaf of a node's pod; an empty name if all leaves are in one pod."""
    groups = view.groups
    pods = np.unique(groups.nic_pod[(groups.nic_node == node) & (groups.nic_pod >= 0)])
    if len(np.unique(groups.nic_pod[groups.nic_pod >= 0])) < 2 or not len(pods):  # noqa: PLR2004 - several pods
        return ""
    return groups.leaf_names[int(groups.nic_leaf[groups.nic_pod == pods[0]].min())]


MIN_CLOCK_USE = 0.3
"""Utilization above which the clock of a GPU is compared, and counts for its model: an idle GPU may lower its clock."""


def _peer_clocks(view: findings.DiagnosisView) -> Floats:
    """Return, for each GPU, the usual clock of busy GPUs of its model, or its own before."""
    gpu = view.signals.gpu
    usual = np.full(len(gpu), np.nan)
    models = np.array([each.model for each in view.devices.gpus])
    busy = findings.above(gpu["utilization"], MIN_CLOCK_USE)
    for model in np.unique(models):
        members = (models == model) & busy & ~np.isnan(gpu["clock"])
        if members.sum() >= 3:  # noqa: PLR2004 - a majority needs three
            usual[models == model] = median(gpu["clock"][members])
    clocks: Floats = np.fmax(usual, or_zero(view.base(DeviceKind.GPU, "clock")))
    return clocks
