"""The node as the API of a collector shows it: the list of GPUs with their NICs, and the status. For `railscope ... --agent`."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec

from railscope import api, figures
from railscope.api.status import Status, StatusReason, rank, worst
from railscope.catalog import METRICS
from railscope.catalog.entities import GPU, NIC
from railscope.catalog.gpu_health import by_cause, reason_text
from railscope.frame import Frame
from railscope.reading import Absent
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope.wire import BYTES_PER_DELAY
from railscope_agent.sampling.status import SourceState

MAX_AGE_SECONDS = 60.0
"""Age from which verdicts are stale."""
_GPU_VALUES = {
    name: METRICS[f"railscope_gpu_{name}"]
    for name in (
        "utilization_ratio",
        "power_watts",
        "temperature_celsius",
        "memory_used_bytes",
        "memory_size_bytes",
    )
}
_LINK_UP, _PORT_UP = METRICS["railscope_network_link_up"], METRICS["railscope_rdma_port_up"]
_RECEIVED, _SENT = (
    METRICS["railscope_nic_receive_bytes_total"],
    METRICS["railscope_nic_transmit_bytes_total"],
)
_HEALTH, _REASON = METRICS["railscope_gpu_health"], METRICS["railscope_gpu_health_reason_active"]
_UTILIZATION = _GPU_VALUES["utilization_ratio"]
_AVERAGED = frozenset({_RECEIVED, _SENT, _UTILIZATION})
_RECENT_NS, _MAX_RECENT = 60 * SECOND_NS, 60
"""Requests of the last minute that count."""
_CLAIMED, _UNCLAIMED = (
    METRICS["railscope_gpu_claimed_ratio"],
    METRICS["railscope_gpu_unclaimed_processes"],
)
_SHOWN = frozenset(
    {
        *_GPU_VALUES.values(),
        _LINK_UP,
        _PORT_UP,
        _RECEIVED,
        _SENT,
        _HEALTH,
        _REASON,
        _CLAIMED,
        _UNCLAIMED,
    }
)


class NodeApi:
    """Makes the documents from the latest frames. Traffic and busy time are means over the requests of the last minute."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._recent: dict[Any, deque[tuple[int, float]]] = {}

    def document(self, path: str, statuses: Sequence[SourceState], now_ns: int) -> bytes:
        """Return the document at a path, as JSON; of frames that are not fresh, only the names of GPUs are used."""
        frames = [
            (each.frame, each.fresh_frame(now_ns) is not None) for each in statuses if each.frame
        ]
        gpus = self._gpus(frames)
        if path.endswith("/gpus"):
            wall_ns = max((each.timestamp.wall_ns for each, _ in frames), default=0)
            return msgspec.json.encode(api.GpuList(wall_ns, tuple(gpus), len(gpus)))
        return msgspec.json.encode(_status(gpus, statuses, now_ns))

    def _gpus(self, frames: Sequence[tuple[Frame, bool]]) -> list[api.Gpu]:
        """Return the GPUs with the NICs on their rails, worst first."""
        known: dict[str, None] = {}
        values: dict[Any, float] = {}
        facts = _facts(frame for frame, _ in frames)
        reasons = defaultdict[str, list[str]](list)
        for frame, is_fresh in frames:
            for column, (metric, entity, reading) in enumerate(frame.readings()):
                if metric not in _SHOWN:
                    continue
                if metric in {_HEALTH, *_GPU_VALUES.values()}:
                    known[entity.key[0]] = None
                if not is_fresh:
                    continue
                if metric is _REASON and reading == 1:
                    reasons[entity.key[0]].append(entity.key[1])
                elif not isinstance(reading, Absent):
                    key, value = (metric, entity.key[0]), float(reading * metric.scale)
                    values[key] = value
                    if metric in _AVERAGED:
                        self._add_recent(key, _read_ns(frame, column), value)
        nics = {
            each["rail"]: name for name, each in reversed(facts["nic"].items()) if each.get("rail")
        }
        gpus = [self._gpu(uuid, facts, values, by_cause(reasons[uuid]), nics) for uuid in known]
        return sorted(gpus, key=lambda gpu: (rank(gpu.state), len(gpu.index), gpu.index))

    def _gpu(
        self, uuid: str, facts: Any, values: Any, reasons: list[str], nics: dict[str, str]
    ) -> api.Gpu:
        of_gpu = facts["gpu"].get(uuid, {})
        rail = of_gpu.get("rail", "")
        nic = nics.get(rail, "")
        link_up = values.get(
            (_LINK_UP, nic), values.get((_PORT_UP, facts["nic"].get(nic, {}).get("rdma_device")))
        )
        received, sent = (
            self._rate(key) if key in values else None for key in ((_RECEIVED, nic), (_SENT, nic))
        )
        unclaimed, claimed = values.get((_UNCLAIMED, uuid)), values.get((_CLAIMED, uuid))
        busy = (_UTILIZATION, uuid)
        health = _HEALTH.states.get(int(values.get((_HEALTH, uuid), 0)), "unknown")
        return api.Gpu(
            uuid,
            of_gpu.get("index", ""),
            of_gpu.get("pci_address", ""),
            int(rail) if rail.isdecimal() else None,
            self._node,
            health,
            (nic,) if nic else (),
            nic_state="down" if link_up == 0 else "",
            health=health,
            reason=reason_text(next(iter(reasons), "")),
            reasons=tuple(reasons),
            link_up=None if link_up is None else bool(link_up),
            unclaimed_processes=None if unclaimed is None else round(unclaimed),
            holders=(api.Holder("", "", "", claimed),) if claimed else (),
            use=_use(claimed, unclaimed),
            receive_bytes_per_second=received,
            transmit_bytes_per_second=sent,
            **{name: values.get((metric, uuid)) for name, metric in _GPU_VALUES.items()}
            | ({"utilization_ratio": self._mean(busy)} if busy in values else {}),
        )

    def _add_recent(self, key: Any, boot_ns: int, value: float) -> None:
        """Add a reading, of the time at which its device was read, to those of the last minute."""
        recent = self._recent.setdefault(key, deque(maxlen=_MAX_RECENT))
        if recent and key[0] is not _UTILIZATION and value < recent[-1][1]:
            recent.clear()  # the counter was reset
        if not recent or boot_ns > recent[-1][0]:
            recent.append((boot_ns, value))
        while boot_ns - recent[0][0] > _RECENT_NS:
            recent.popleft()

    def _rate(self, key: Any) -> float | None:
        """Return the rate of a counter; None before the second request."""
        recent = self._recent.get(key)
        if recent is None or len(recent) < 2:  # noqa: PLR2004 - a rate needs two readings
            return None
        (from_ns, before), (to_ns, after) = recent[0], recent[-1]
        return (after - before) / ((to_ns - from_ns) / SECOND_NS)

    def _mean(self, key: Any) -> float | None:
        recent = self._recent.get(key)
        return fmean(value for _, value in recent) if recent else None


def _facts(frames: Iterable[Frame]) -> dict[str, dict[str, Mapping[str, str]]]:
    """Return the facts of GPUs and NICs by kind and name. Columns may name a device without its facts."""
    facts: dict[str, dict[str, Mapping[str, str]]] = {GPU.name: {}, NIC.name: {}}
    for frame in frames:
        for entity in frame.schema.entities:
            if entity.facts and entity.kind in {GPU, NIC}:
                facts[entity.kind.name][entity.key[0]] = entity.facts
    return facts


def _read_ns(frame: Frame, column: int) -> int:
    """Return the time at which the device of a column was read, on the boot clock."""
    start = column * BYTES_PER_DELAY
    delay_us = int.from_bytes(frame.read_delays[start : start + BYTES_PER_DELAY], "little")
    return frame.timestamp.boot_ns + delay_us * MICROSECOND_NS


def _use(claimed: float | None, unclaimed: float | None) -> str:
    if claimed is None or unclaimed is None:
        return "unknown"
    return "claimed" if claimed else "unclaimed" if unclaimed else "idle"


def _status(gpus: Sequence[api.Gpu], statuses: Sequence[SourceState], now_ns: int) -> Status:
    """Return the status of the node, by the verdicts on its GPUs."""
    frames = {each.source.name: each.frame for each in statuses if each.frame}
    ages = [
        (now_ns - frames[name].timestamp.boot_ns) / SECOND_NS
        for name in ("gpu", "gpu_verdict")
        if name in frames
    ]
    age = max(ages, default=None)
    reasons = tuple(_reasons(gpus, statuses, age))
    uses = Counter(gpu.use for gpu in gpus)
    absent = {} if ages else {"age_seconds": "the GPUs have not been read"}
    return Status(
        status=worst(*(each.status for each in reasons)),
        reasons=reasons,
        age_seconds=age,
        gpus={use: uses[use] for use in ("claimed", "unclaimed", "idle", "unknown")},
        absent=absent,
    )


def _reasons(
    gpus: Sequence[api.Gpu], statuses: Sequence[SourceState], age: float | None
) -> Iterator[StatusReason]:
    if not gpus:
        yield StatusReason("unknown", "the agent reports no GPU")
    for gpu in gpus:
        if gpu.state != "healthy":
            text = gpu.reason or "no reason is reported"
            yield StatusReason(gpu.state, f"GPU {gpu.index or gpu.gpu}: {text}")
        if gpu.nic_state == "down":
            yield StatusReason(
                "degraded", f"rail {gpu.rail}: the link of {', '.join(gpu.nics)} is down"
            )
    for each in statuses:
        if each.state_name == "failed":
            yield StatusReason("degraded", f"source {each.source.name} cannot be read")
    if age is not None and age > MAX_AGE_SECONDS:
        yield StatusReason("unknown", f"stale: read {figures.duration(round(age, 1))} ago")
