"""Shares of GPUs that Kubernetes pods request, for each GPU sharing system.

Each reader parses the annotations and limits of one pod: named devices with an exact fraction
each, or a number of unnamed devices. A fraction of memory requires the memory size of the device:
if that is unknown, the result is a problem and no claim, never the complete device.

Sources: Project-HAMi/HAMi:docs/develop/protocol.md;
volcano-sh/volcano:pkg/scheduler/api/devices/nvidia;
AliyunContainerService/gpushare-scheduler-extender:pkg/utils;
hkust-adsl/kubernetes-scheduler-simulator; tkestack/gpu-manager:README.md; tencentcloud.com
document 457/59103; NVIDIA/KAI-Scheduler:pkg/common/constants, pkg/binder/binding/resourcereservation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, TypeAlias

import msgspec

from railscope import RailscopeError, convert_errors
from railscope.claim_terms import MAX_COUNT
from railscope.kubernetes_pods import PodEntry
from railscope.untrusted_text import NumberError, parse_whole

DeviceReference: TypeAlias = str | int | None
"""Device by UUID, index, `UUID[GEOMETRY-INDEX]` (a MIG device) or `GROUP_PREFIX` and a GPU group, or None."""
GROUP_PREFIX = "runai-gpu-group/"
"""Before the GPU group of a fraction: the GPU is the one that the reservation pod of the group has."""
RESERVATION_NAMESPACES = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of pods that occupy a GPU for the fractions of its group (KAI, Run:ai).

Source: NVIDIA/KAI-Scheduler:pkg/binder/binding/resourcereservation, whose setting may name another one.
"""
MemoryOfDevice: TypeAlias = Callable[[DeviceReference], int | None]
"""MiB of a device; for None, of each device of the node if all have the same size."""
_QUANTITY = re.compile(r"([0-9]{1,12})(k|M|G|Ki|Mi|Gi)?")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_HUNDRED, _MILLI, _VCUDA_MIB, _GIB = 100, 1000, 256, 1024
_FIELDS = 4
_MAX_AMOUNT = 1 << 40
"""Upper limit in MiB or percent; above any device."""
_MAX_INDEX = 1 << 16
_DECIMAL = re.compile(r"(?:0|1)?(?:\.[0-9]{1,9})?")
_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=_MAX_AMOUNT)]


class PodRequestError(RailscopeError, ValueError):
    """An annotation or limit that cannot be parsed; the message names it."""


@dataclass(frozen=True, slots=True)
class RequestedShare:
    """Fraction of one device, or of each of `count` unnamed devices. None: the complete device."""

    place: DeviceReference
    share: Fraction | None
    count: int = 1

    @property
    def is_mig_device(self) -> bool:
        """True if the device is a MIG device, whose size only the node knows."""
        return isinstance(self.place, str) and "[" in self.place


@dataclass(slots=True)
class PodShareRequests:
    """Shares of GPUs that a pod requests, and the requests that could not be parsed."""

    shares: list[RequestedShare] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """True if the pod uses this sharing system."""
        return bool(self.shares or self.problems)


def requests_of(pod: PodEntry, memory: MemoryOfDevice) -> PodShareRequests:
    """Return a pod's requests, by the first sharing system that it uses."""
    for read in _READERS:
        requests = PodShareRequests()
        try:
            requests.shares += _sum_by_device(read(pod, memory))
        except PodRequestError as error:
            requests.problems.append(
                f"reading the GPU shares of pod {pod.namespace}/{pod.name} failed: {error}"
            )
        if requests:
            return requests
    return PodShareRequests()


def _sum_by_device(requested: Iterable[RequestedShare]) -> list[RequestedShare]:
    """Sum the shares per device: two containers of a pod may share one. Unnamed ones by share."""
    named: dict[DeviceReference, Fraction | None] = {}
    counts: dict[Fraction | None, int] = {}
    for one in requested:
        if one.place is None:
            counts[one.share] = counts.get(one.share, 0) + one.count
            continue
        before = named.get(one.place, Fraction(0))
        # A complete device stays complete, and shares never add up to more than one device.
        total = (
            None if one.share is None or before is None else min(before + one.share, Fraction(1))
        )
        named[one.place] = total
    shares = [RequestedShare(place, share) for place, share in named.items()]
    return shares + [
        RequestedShare(None, share, min(count, MAX_COUNT)) for share, count in counts.items()
    ]


def _fraction(part: int, of: int | None, field: str) -> Fraction:
    """Return the fraction, limited to the complete device: memory may be overcommitted (scaling)."""
    if not of:
        message = f"invalid {field}: the memory of the device is unknown"
        raise PodRequestError(message)
    if part <= 0:
        message = f"invalid {field}: {part}: expected more than 0"
        raise PodRequestError(message)
    return min(Fraction(part, of), Fraction(1))


def _share(cores: int, mib: int, percent: int, of: int | None, field: str) -> Fraction | None:
    """Share by cores if any are reserved (100: exclusive), else by memory."""
    if cores >= _HUNDRED:
        return None
    if cores > 0:
        return Fraction(cores, _HUNDRED)
    return _fraction(percent, _HUNDRED, field) if percent > 0 else _fraction(mib, of, field)


def _number(texts: Mapping[str, str], name: str) -> int:
    """Parse a whole number in Kubernetes' quantity notation; 0 if missing."""
    text = texts.get(name, "0").strip()
    match = _QUANTITY.fullmatch(text)
    if match is None:
        message = f"invalid {name}: {text[:50]!r}: expected a quantity such as 4 or 8Gi"
        raise PodRequestError(message)
    return int(match[1]) * _FACTORS[match[2] or ""]


def _indices(text: str, field: str) -> list[int]:
    parts = [part.strip() for part in re.split("[,;]", text)]
    with convert_errors(NumberError, PodRequestError, f"invalid {field}: {text[:50]!r}: "):
        return [parse_whole(part, _MAX_INDEX) for part in parts if part]


def _granted_shares(
    pod: PodEntry, slots: Sequence[Sequence[RequestedShare]]
) -> list[RequestedShare]:
    """Return what the slots of the containers of a pod amount to now, for each device.

    The slots of init containers come first; older HAMi wrote none (Project-HAMi/HAMi#1942, #2899). Init containers run one
    at a time before the others, and hold nothing afterwards: a share of 0; a sidecar runs throughout. Source:
    kubernetes/kubernetes:pkg/api/v1/resource/helpers.go (effective requests of a pod).
    """
    init_count = max(len(slots) - len(pod.containers), 0)
    sidecars = pod.sidecars or ()
    is_positional = init_count == len(sidecars)
    has_initialized = pod.phase == "Running" and (
        is_positional or (pod.sidecars is None and any(slots[init_count:]))
    )
    running: list[RequestedShare] = []
    peaks: list[list[RequestedShare]] = []
    for position, slot in enumerate(slots[:init_count]):
        if is_positional and sidecars[position]:
            running += slot
        elif not has_initialized:
            peaks.append(_sum_by_device([*running, *slot]))
        else:
            peaks.append([replace(share, share=Fraction(0)) for share in slot])
    running += (share for slot in slots[init_count:] for share in slot)
    granted: dict[DeviceReference, RequestedShare] = {}
    for share in (share for peak in (_sum_by_device(running), *peaks) for share in peak):
        other = granted.setdefault(share.place, share)
        if other.share is not None and (share.share is None or share.share > other.share):
            granted[share.place] = share
    return list(granted.values())


def _parse_devices(text: str, memory: MemoryOfDevice, field: str) -> Iterator[RequestedShare]:
    """Parse the slot of a container: `UUID,NVIDIA,MiB,cores:` for each device."""
    for device in text.split(":"):
        if not device.strip():
            continue
        fields = [part.strip() for part in device.split(",")]
        try:
            place, driver, mib, cores = (*fields, *[""] * _FIELDS)[:_FIELDS]
            amounts = parse_whole(cores, _MAX_AMOUNT), parse_whole(mib, _MAX_AMOUNT)
        except NumberError as error:
            message = f"invalid device in {field}: {device[:80]!r}: expected UUID,NVIDIA,MiB,cores"
            raise PodRequestError(message) from error
        if not driver.upper().startswith("NVIDIA"):
            continue
        granted = RequestedShare(place, None)
        if not granted.is_mig_device:
            share = _share(*amounts, 0, memory(place), f"{field} {place}")
            granted = RequestedShare(place, share)
        yield granted


def _virtual(
    pod: PodEntry, memory: MemoryOfDevice, annotation: str, names: tuple[str, str, str, str]
) -> Iterator[RequestedShare]:
    """HAMi and Volcano: devices by annotation, else numbers by limits."""
    if text := pod.annotations.get(annotation, ""):
        slots = text.removesuffix(";").split(";")
        yield from _granted_shares(
            pod, [tuple(_parse_devices(slot, memory, annotation)) for slot in slots]
        )
        return
    number, mib, percent, cores = names
    for container in pod.containers:
        limits = container.limits
        if not {mib, percent, cores} & limits.keys():
            continue  # complete GPUs of the standard device plugin
        share = _share(
            _number(limits, cores),
            _number(limits, mib),
            _number(limits, percent),
            memory(None),
            mib,
        )
        yield RequestedShare(None, share, max(_number(limits, number), 1))


def _hami(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    names = (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
    )
    return _virtual(pod, memory, "hami.io/vgpu-devices-allocated", names)


def _volcano_vgpu(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    of = "volcano.sh/vgpu-"
    names = (f"{of}number", f"{of}memory", f"{of}memory-percentage", f"{of}cores")
    if f"{of}ids-new" in pod.annotations or any(f"{of}number" in c.limits for c in pod.containers):
        shares = list(_virtual(pod, memory, f"{of}ids-new", names))
        whole = sum(_number(c.limits, f"{of}number") for c in pod.containers)
        # Without limits of memory or cores, the GPUs are complete.
        yield from shares or ([RequestedShare(None, None, whole)] if whole else [])


def _volcano_gpushare(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    limits = [container.limits for container in pod.containers]
    mib = sum(_number(limit, "volcano.sh/gpu-memory") for limit in limits)
    whole = sum(_number(limit, "volcano.sh/gpu-number") for limit in limits)
    name = "volcano.sh/gpu-index"
    places = _indices(pod.annotations.get(name, ""), name)
    if mib:
        place = places[0] if places else None
        yield RequestedShare(place, _fraction(mib, memory(place), "volcano.sh/gpu-memory"))
    elif whole:
        yield from (RequestedShare(place, None) for place in places)
        if whole > len(places):
            yield RequestedShare(None, None, whole - len(places))


def _gpushare(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    notes, name = pod.annotations, "ALIYUN_COM_GPU_MEM"
    limits = [container.limits for container in pod.containers]
    cores = sum(_number(limit, "aliyun.com/gpu-core.percentage") for limit in limits)
    amount = sum(_number(limit, "aliyun.com/gpu-mem") for limit in limits) or _number(
        notes, f"{name}_POD"
    )
    of = _number(notes, f"{name}_DEV")
    if text := notes.get("scheduler.framework.gpushare.allocation", ""):
        for place, part in _by_index(text).items():
            yield RequestedShare(place, _memory_part(part, of, memory(place)))
        return
    if not amount and not cores:
        return
    places = _indices(notes.get(f"{name}_IDX", ""), f"{name}_IDX")
    at: DeviceReference = places[0] if places else None
    if cores:
        yield RequestedShare(at, _fraction(cores, _HUNDRED, "aliyun.com/gpu-core.percentage"))
    else:
        yield RequestedShare(at, _memory_part(amount, of, memory(at)))


def _by_index(text: str) -> dict[int, int]:
    """Sum amounts by GPU of `{"container":{"GPU index":amount}}` over all containers."""
    try:
        allocations = msgspec.json.decode(text.encode(), type=dict[str, dict[str, _Amount]])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        message = f"invalid scheduler.framework.gpushare.allocation: {error}"
        raise PodRequestError(message) from error
    totals: dict[int, int] = {}
    for amounts in allocations.values():
        for index, amount in amounts.items():
            (place,) = _indices(index, "scheduler.framework.gpushare.allocation") or [0]
            totals[place] = totals.get(place, 0) + amount
    return totals


def _memory_part(amount: int, of: int, mib: int | None) -> Fraction:
    """Fraction of the total that the scheduler wrote; else of the device, in GiB, or in MiB if larger."""
    if of:
        return _fraction(amount, of, "aliyun.com/gpu-mem")
    gib = (mib or 0) // _GIB
    return _fraction(amount, gib if amount <= gib else mib, "aliyun.com/gpu-mem")


def _gpu_milli(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    del memory
    of = "alibabacloud.com/gpu-"
    texts = dict(pod.annotations)
    for container in pod.containers:
        texts |= container.limits
    if f"{of}milli" not in texts:
        return
    milli, count = _number(texts, f"{of}milli"), max(_number(texts, f"{of}count"), 1)
    share = None if milli >= _MILLI else _fraction(milli, _MILLI, f"{of}milli")
    places = _indices(texts.get(f"{of}index", "").replace("-", ","), f"{of}index")
    if len(places) == 2 and places[1] - places[0] + 1 == count:  # noqa: PLR2004 - a range has two ends
        places = list(range(places[0], places[1] + 1))
    yield from (RequestedShare(place, share) for place in places[:count])
    if count > len(places):
        yield RequestedShare(None, share, count - len(places))


def gpu_groups(pod: PodEntry) -> list[str]:
    """Return the GPU groups of KAI or Run:ai that a pod is in: one, or one for each of several devices."""
    groups = {
        text
        for name, text in pod.annotations.items()
        if f"{name}/".startswith(GROUP_PREFIX) and _GROUP.fullmatch(text)
    }
    return sorted(groups)


def _kai(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    """KAI and Run:ai: a fraction, or MiB, of the GPU of each group."""
    notes, groups = pod.annotations, gpu_groups(pod)
    count = max(_number(notes, "gpu-fraction-num-devices"), len(groups), 1)
    if text := notes.get("gpu-fraction", ""):
        share = _decimal(text, "gpu-fraction")
    elif groups and "gpu-memory" in notes:
        mib = _number(notes, "gpu-memory")
    else:
        return
    for place in (f"{GROUP_PREFIX}{group}" for group in groups):
        yield RequestedShare(place, share if text else _fraction(mib, memory(place), "gpu-memory"))
    if count > len(groups):
        share = share if text else _fraction(mib, memory(None), "gpu-memory")
        yield RequestedShare(None, share, count - len(groups))


def _decimal(text: str, field: str) -> Fraction:
    share = Fraction(text) if _DECIMAL.fullmatch(text) and text != "." else Fraction(0)
    if not 0 < share <= 1:
        message = f"invalid {field}: {text[:50]!r}: expected a fraction such as 0.5"
        raise PodRequestError(message)
    return share


def _cores(cores: int, field: str) -> tuple[Fraction | None, int]:
    """Return share and count: below 100 a fraction of one GPU, else complete GPUs by hundreds."""
    if cores < _HUNDRED:
        return Fraction(cores, _HUNDRED), 1
    if cores % _HUNDRED:
        message = f"invalid {field}: {cores}: expected less than 100, or hundreds"
        raise PodRequestError(message)
    return None, cores // _HUNDRED


def _tencent(pod: PodEntry, memory: MemoryOfDevice) -> Iterator[RequestedShare]:
    """Shares of QGPU (annotations without a device), or of gpu-manager (one device per container)."""
    for container in pod.containers:
        limits = container.limits
        for system, unit in (
            ("tke.cloud.tencent.com/qgpu", _GIB),
            ("tencent.com/vcuda", _VCUDA_MIB),
        ):
            cores, amount = _number(limits, f"{system}-core"), _number(limits, f"{system}-memory")
            note = f"tencent.com/predicate-gpu-idx-{container.name}"
            places = _indices(pod.annotations.get(note, ""), note) if unit == _VCUDA_MIB else []
            if cores:
                share, count = _cores(cores, f"{system}-core")
            elif amount:
                first = places[0] if places else None
                share = _fraction(amount * unit, memory(first), f"{system}-memory")
                count = 1
            else:
                continue
            yield from (RequestedShare(place, share) for place in places[:count])
            if count > len(places):
                yield RequestedShare(None, share, count - len(places))


_READERS: tuple[Callable[[PodEntry, MemoryOfDevice], Iterator[RequestedShare]], ...] = (
    _hami,
    _volcano_vgpu,
    _volcano_gpushare,
    _gpushare,
    _gpu_milli,
    _tencent,
    _kai,
)
