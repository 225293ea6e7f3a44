"""NVLinks: traffic and signal quality of each.

Counters with the same meaning have changed fields between generations: the newest field is tried
first. Sources: nvml.h, NVML_FI_DEV_NVLINK_*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import takewhile

from railscope.catalog import declare, entities, nvlink as n
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.nvidia import call_plan, call_table, column_history
from railscope_agent.topology.pci import pci_address

_LINK_COUNT = 91
_MAX_LINKS = 36
_NOT_SUPPORTED = 3
_NO_LINKS_CODES = {2, _NOT_SUPPORTED, 13}
"""Codes INVALID_ARGUMENT, NOT_SUPPORTED and FUNCTION_NOT_FOUND."""
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_REMOTE_TYPES = {0: "gpu", 1: "ibm_npu", 2: "switch"}
_LEGACY_SPLIT = 6
"""Fields of links 0 to 5 and of links 6 to 11 are in two runs (nvml.h)."""
# First field of each run, and the field of Hopper that has the link as its scope.
_LEGACY_ERRORS = {
    "replay": ((46, 108), 161),
    "recovery": ((53, 114), 162),
    "crc": ((), 163),
    "crc_flit": ((32, 96), None),
    "crc_data": ((39, 102), None),
    "ecc_data": ((148, 154), None),
}
_LEGACY_SPEED = (84, 132)
_TRAFFIC = {
    167: n.NVLINK_POWER_STATE,
    138: n.NVLINK_TRANSMITTED,
    139: n.NVLINK_RECEIVED,
    140: n.NVLINK_RAW_TRANSMITTED,
    141: n.NVLINK_RAW_RECEIVED,
    201: n.NVLINK_TRANSMITTED_PACKETS,
    203: n.NVLINK_RECEIVED_PACKETS,
}
_PACKET_ERRORS = {
    205: "vl15_dropped",
    206: "malformed_packet",
    207: "buffer_overrun",
    208: "receive",
    209: "receive_remote",
    210: "receive_general",
    211: "local_integrity",
    212: "transmit_discard",
}
_SIGNAL_ERRORS = {219: "effective", 221: "symbol", 289: "raw_lane0", 290: "raw_lane1"}
_BIT_ERRORS = {"effective": (220,), "symbol": (222,), "raw": (293, 218)}
_FIRST_FEC, _FEC_BINS = 235, 16
_EXPONENT_BITS, _MANTISSA_MASK = 8, 0xF
_EXPONENT_MASK = (1 << _EXPONENT_BITS) - 1
_THOUSANDTHS = 1000
_COUNTS = n.NVLINK_LINKS, n.NVLINK_ACTIVE
"""Metrics of the links of a GPU together."""


def bit_error_decades(packed: int) -> Reading:
    """A bit error ratio in thousandths of a decade: 12000 for 1e-12.

    `packed` holds the exponent in bits 0 to 7 and the mantissa in bits 8 to 11 (nvml.h,
    NVML_NVLINK_ERROR_COUNTER_BER_GET). No error so far is mantissa 15 and exponent 255, the best
    possible ratio (NVIDIA/DCGM, DcgmHealthWatch.cpp); a mantissa of 0 is invalid.
    """
    exponent, mantissa = packed & _EXPONENT_MASK, packed >> _EXPONENT_BITS & _MANTISSA_MASK
    if mantissa == 0:
        return Absent.ERROR
    return round(_THOUSANDTHS * (exponent - math.log10(mantissa)))


def _decades(value: Json) -> Reading:
    return bit_error_decades(call_table.packed(value))


def _field(
    link: Entity,
    metric: declare.Metric,
    entries: tuple[int | str, ...],
    kind: declare.EntityKind | None = None,
    *part: str,
) -> call_table.BatchField:
    if kind:
        return _part_field(entries, metric, kind, (*link.key[1:], *part))
    target = call_table.CallTarget(metric, call_table.whole, entity=link)
    return call_table.BatchField(entries, target)


@cache
def _part_field(
    entries: tuple[int | str, ...],
    metric: declare.Metric,
    kind: declare.EntityKind,
    part: tuple[str, ...],
    pick: call_table.PickReading = call_table.whole,
) -> call_table.BatchField:
    """Field of a part of a link; shared by all GPUs, as it contains none."""
    return call_table.BatchField(entries, call_table.CallTarget(metric, pick, kind, part))


@cache
def _scoped(number: int, link: int) -> str:
    """Batch entry of a field with a link as its scope; shared by all GPUs."""
    return f"{number}:{link}"


def _error_entries(name: str, link: int) -> tuple[int | str, ...]:
    """Batch entries with the count of an error of the link, the newest first."""
    runs, scoped = _LEGACY_ERRORS[name]
    newest: tuple[int | str, ...] = () if scoped is None else (_scoped(scoped, link),)
    return (*newest, *_legacy(runs, link))


def _legacy(runs: tuple[int, ...], link: int) -> tuple[int, ...]:
    """Field of the link itself, for the first twelve links."""
    if not runs or link >= 2 * _LEGACY_SPLIT:
        return ()
    return (runs[link // _LEGACY_SPLIT] + link % _LEGACY_SPLIT,)


def traffic_fields(link: int, entity: Entity) -> list[call_table.BatchField]:
    """State, speed, bytes and errors of a link."""
    state = call_table.CallTarget(n.NVLINK_STATE, call_table.whole, entity=entity)
    call = call_table.NvmlCall(("nvmlDeviceGetNvLinkState",), (state,), (link,))
    fields = [
        call_table.BatchField((_scoped(165, link),), state, call),
        _field(entity, n.NVLINK_SPEED, (_scoped(164, link), *_legacy(_LEGACY_SPEED, link))),
    ]
    fields += [
        _field(entity, metric, (_scoped(number, link),)) for number, metric in _TRAFFIC.items()
    ]
    fields += [
        _field(
            entity, n.NVLINK_RECOVERIES, (_scoped(number, link),), entities.NVLINK_RECOVERY, outcome
        )
        for number, outcome in {213: "successful", 214: "failed"}.items()
    ]
    errors = {name: _error_entries(name, link) for name in _LEGACY_ERRORS}
    errors |= {name: (_scoped(number, link),) for number, name in _PACKET_ERRORS.items()}
    fields += [
        _field(entity, n.NVLINK_ERRORS, entries, entities.NVLINK_ERROR, name)
        for name, entries in errors.items()
        if entries
    ]
    return fields


def signal_fields(link: int, entity: Entity) -> list[call_table.BatchField]:
    """Signal quality of a link: error ratios, corrected codewords, retransmitted blocks."""
    link_key = entity.key[1:]
    fields = [
        _part_field(
            tuple(_scoped(number, link) for number in numbers),
            n.NVLINK_BIT_ERRORS,
            entities.NVLINK_BER,
            (*link_key, stage),
            _decades,
        )
        for stage, numbers in _BIT_ERRORS.items()
    ]
    bins = {_FIRST_FEC + symbols: str(symbols) for symbols in range(_FEC_BINS)}
    for metric, kind, parts in (
        (n.NVLINK_ERRORS, entities.NVLINK_ERROR, _SIGNAL_ERRORS),
        (n.NVLINK_CODEWORDS, entities.NVLINK_FEC, bins),
        (n.NVLINK_PLR_BLOCKS, entities.NVLINK_RECOVERY, {294: "sent", 295: "sent_again"}),
    ):
        for number, part in parts.items():
            fields.append(_field(entity, metric, (_scoped(number, link),), kind, part))
    return fields


class NvLinkSource(source.Source):
    """Every NVLink of every GPU: its traffic, or its signal."""

    lane = source.NVML

    def __init__(
        self,
        name: str,
        period_seconds: float,
        gpus: GpuInventory | None = None,
        *,
        signal: bool,
    ) -> None:
        self.name, self.period_seconds = name, period_seconds
        self._signal = signal
        self._gpus = gpus or GpuInventory()
        self._plans = call_plan.CallPlans(self._gpus)
        self._calls: dict[int, tuple[int, call_table.CallTable]] = {}
        """Number of links of each GPU, and the calls for them."""
        self._counts: dict[tuple[str, ...], int] = {}
        self._up: dict[int, list[bool]] = {}
        """True for each link of a GPU that was up at the last read."""
        self._totals: list[tuple[int, list[int]]] = []
        """Column of a GPU's number of links, and columns of its link states."""
        self._unclear: list[tuple[int, Absent]] = []
        """Columns of GPUs whose number of links is not known yet, with the reason."""
        self._errors = column_history.DeviceTotals(n.NVLINK_ERRORS, n.GPU_NVLINK_ERRORS)

    @classmethod
    def traffic(cls, gpus: GpuInventory | None = None) -> NvLinkSource:
        """State, speed, bytes and errors."""
        return cls("nvlink", 10.0, gpus, signal=False)

    @classmethod
    def signal(cls, gpus: GpuInventory | None = None) -> NvLinkSource:
        """Error ratios and corrected codewords."""
        return cls("nvlink_signal", 60.0, gpus, signal=True)

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Count the links of each GPU and plan the calls for them."""
        gpus = self._gpus.scan(host)
        if self._plans.is_outdated:
            self._calls.clear()
        columns = probe_result.ColumnBuilder()
        counts = {gpu.index: self._links(host, gpu) for gpu in gpus.values()}
        linked = [gpu for gpu in gpus.values() if counts[gpu.index] not in {0, *Absent}]
        tables = [(gpu.index, gpu.entity, self._calls[gpu.index][1]) for gpu in linked]
        self._plans.add_columns(host, tables, columns, self._needs)
        self._totals, self._unclear = [], []
        if not self._signal:
            self._totals = _totals(linked, columns)
            self._unclear = [
                (columns.add_each(_COUNTS, gpu.entity), count)
                for gpu in gpus.values()
                if isinstance(count := counts[gpu.index], Absent)
            ]
            self._errors.add_columns(columns, [gpu.entity for gpu in linked])
        self._up.clear()  # support was detected with the links in their current states
        return columns.result(columnless_entities=[gpu.entity for gpu in linked])

    def _needs(self, metric: declare.Metric) -> bool:
        """True for a selected metric, the states of links, and the parts of a selected sum of errors."""
        is_part = metric is n.NVLINK_ERRORS and self.selects(n.GPU_NVLINK_ERRORS)
        return is_part or metric is n.NVLINK_STATE or self.selects(metric)

    def _links(self, host: Host, gpu: GpuDevice) -> Reading:
        """Number of links of a GPU. The calls for them are cached: they are thousands of fields."""
        count = _count(host, gpu.index)
        if isinstance(count, Absent):  # a failed call does not mean lost links
            count = self._counts.get(gpu.entity.key, count)
        if isinstance(count, Absent):
            return count
        self._counts[gpu.entity.key] = count
        if count != self._calls.get(gpu.index, (0, None))[0]:
            make = signal_fields if self._signal else traffic_fields
            links = [
                Entity(entities.NVLINK, (*gpu.entity.key, str(link)), _facts(host, gpu.index, link))
                for link in range(count)
            ]
            fields = [field for link, entity in enumerate(links) for field in make(link, entity)]
            self._calls[gpu.index] = count, call_table.CallTable(fields=tuple(fields))
        return count

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read all links of a GPU in one batch, count those that are up, and add up their errors."""
        self._plans.read(host, into)
        self._errors.read(into)
        for total, reason in self._unclear:
            into.put_none(total, len(_COUNTS), reason)
        for total, states in self._totals:
            unknown = [position for position in states if into.reasons[position]]
            up = [into.values[position] != n.NVLINK_INACTIVE for position in states]
            # A count of the readable ones would look like links that are down.
            reading = Absent(into.reasons[unknown[0]]) if unknown else sum(up)
            into.put_readings(total, (len(states), reading))
            if not unknown and self._has_changed(total, up):
                self._gpus.record_change()
                into.needs_probe = True

    def _has_changed(self, total: int, up: list[bool]) -> bool:
        """True if links came up or went down: what a link supports may depend on that."""
        before, self._up[total] = self._up.get(total), up
        return before is not None and before != up


def _totals(
    gpus: Sequence[GpuDevice], columns: probe_result.ColumnBuilder
) -> list[tuple[int, list[int]]]:
    """Columns of the number of links of each GPU, and positions of its link states."""
    states: dict[tuple[str, ...], list[int]] = {gpu.entity.key: [] for gpu in gpus}
    for position, (metric, entity) in enumerate(columns.columns):
        if metric is n.NVLINK_STATE:
            states[entity.whole_key].append(position)
    totals = []
    for gpu in gpus:
        total = columns.add_each(_COUNTS, gpu.entity)
        totals.append((total, states[gpu.entity.key]))
    return totals


def _count(host: Host, gpu: int) -> Reading:
    """Number of links of a GPU, or the reason for which the driver does not report it at present."""
    try:
        (value,), (code,) = host.call("nvml", "nvmlDeviceGetFieldValues", gpu, _LINK_COUNT)
    except NvmlError as error:
        value, code = 0, error.code
    except OSError:
        value, code = 0, _NOT_SUPPORTED
    if code == 0:
        return int(value) if 0 <= value <= _MAX_LINKS else Absent.ERROR
    if code not in _NO_LINKS_CODES:
        return answer_readings.nvml_reason(code)
    # NVML without the field: links are counted up to the first one that does not answer.
    states = (
        fact_readers.call_nvml(host, "nvmlDeviceGetNvLinkState", gpu, link)
        for link in range(_MAX_LINKS)
    )
    return sum(1 for _ in takewhile(lambda state: state is not None, states))


def _facts(host: Host, gpu: int, link: int) -> dict[str, str]:
    version, remote, pci = (
        fact_readers.call_nvml(host, f"nvmlDeviceGetNvLink{member}", gpu, link)
        for member in ("Version", "RemoteDeviceType", "RemotePciInfo")
    )
    return fact_readers.nonempty_facts(
        version="" if version is None else _VERSIONS.get(version, str(version)),
        remote_type="" if remote is None else _REMOTE_TYPES.get(remote, "unknown"),
        remote_pci_address=pci_address(pci["busId"]) if pci and pci["busId"] else "",
    )
