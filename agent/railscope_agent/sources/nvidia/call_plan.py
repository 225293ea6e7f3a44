"""Plans of NVML calls for one device, and the building blocks of the tables of calls.

Tables: sources are nvml.h; units are those of the catalog's declarations. An entry that a driver or
a GPU may lack can name older calls as fallbacks.

Plans: support is detected when a plan is made and not tested again; plans are rebuilt when the
driver, the GPU or its mode changes. A metric of a whole GPU that is unsupported keeps its column,
as absent; a part that the GPU lacks, like an eighth decoder or the error counters of another
generation, has no column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from railscope.catalog.declare import EntityKind, Metric
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import answer_readings, probe_result, row_builder

PickReading = Callable[[Json], Reading]


@dataclass(frozen=True, slots=True)
class CallTarget:
    """A column that a call fills: about the device, a part of it, or a given entity."""

    metric: Metric
    pick: PickReading
    kind: EntityKind | None = None
    part: tuple[str, ...] = ()
    entity: Entity | None = None

    @property
    def is_of_part(self) -> bool:
        """True if it is about a part of the device, which the device may not have."""
        return self.kind is not None or self.entity is not None

    def about(self, device: Entity) -> Entity:
        """Entity of the column, for one device."""
        if self.entity:
            return self.entity
        return device.child(self.kind, *self.part) if self.kind else device


@dataclass(frozen=True, slots=True)
class NvmlCall:
    """An NVML call and the columns of its result; the first function that the driver has is used."""

    functions: tuple[str, ...]
    targets: tuple[CallTarget, ...]
    arguments: tuple[int, ...] = ()
    is_of_device: bool = True
    """True if the device is the first argument; a system call takes none."""


@dataclass(frozen=True, slots=True)
class BatchField:
    """A column that one entry of a batch fills: a field, "field:scope", or a GPM metric.

    The first entry that the GPU has is used, else the call. The call's first target is the column.
    """

    entries: tuple[int | str, ...]
    target: CallTarget
    otherwise: NvmlCall | None = None


FIELD_VALUES, GPM = "nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"


@dataclass(frozen=True, slots=True)
class CallTable:
    """All calls for a device at one period; `batch` is the call for the fields.

    `recent` marks fields that older drivers lack: if a driver rejects the whole batch as an invalid
    argument, it has none of them.
    """

    calls: tuple[NvmlCall, ...] = ()
    fields: tuple[BatchField, ...] = ()
    batch: str = FIELD_VALUES
    recent: bool = False

    def select(self, is_needed: Callable[[Metric], bool]) -> CallTable:
        """Return the calls and fields of these metrics."""
        calls = (
            replace(call, targets=tuple(each for each in call.targets if is_needed(each.metric)))
            for call in self.calls
        )
        fields = (each for each in self.fields if is_needed(each.target.metric))
        return replace(
            self, calls=tuple(call for call in calls if call.targets), fields=tuple(fields)
        )


whole: PickReading = int
"""The answer itself. The built-in type costs no call of a Python function."""


def key(name: str) -> PickReading:
    """One member of a structure; a member that this version lacks is unsupported."""

    def pick(result: Json) -> Reading:
        if not isinstance(result, dict):
            return Absent.ERROR
        return int(result[name]) if name in result else Absent.UNSUPPORTED

    return pick


def used(memory: Json) -> Reading:
    """Memory in use. Version 1 of the call includes memory reserved by the driver: another quantity."""
    return int(memory["used"]) if "reserved" in memory else Absent.UNSUPPORTED


def item(index: int) -> PickReading:
    """One item of a list."""
    return lambda result: int(result[index])


def bit(mask: int) -> PickReading:
    """1 if a bit of a mask is set, else 0."""
    return lambda result: int(bool(int(result) & mask))


def count(result: Json) -> Reading:
    """Length of a list."""
    return len(result) if isinstance(result, list) else Absent.ERROR


def simple(
    function: str,
    metric: Metric,
    kind: EntityKind | None = None,
    *part: str,
    arguments: tuple[int, ...] = (),
) -> NvmlCall:
    """A call that returns the reading itself."""
    return NvmlCall((function,), (CallTarget(metric, whole, kind, part),), arguments)


def members(function: str, metrics: Mapping[str, Metric], *more: CallTarget) -> NvmlCall:
    """A call that returns a structure, with the metric of each member that is a reading."""
    targets = (CallTarget(metric, key(name)) for name, metric in metrics.items())
    return NvmlCall((function,), (*targets, *more))


def items(function: str, *metrics: Metric) -> NvmlCall:
    """A call that returns a list, with the metric of each item."""
    targets = (CallTarget(metric, item(index)) for index, metric in enumerate(metrics))
    return NvmlCall((function,), tuple(targets))


def field(
    number: int | str,
    metric: Metric,
    kind: EntityKind | None = None,
    *part: str,
    pick: PickReading = whole,
    otherwise: NvmlCall | None = None,
) -> BatchField:
    """A field that contains the reading itself; `otherwise` is the call of older drivers."""
    return BatchField((number,), CallTarget(metric, pick, kind, part), otherwise)


_NOT_SUPPORTED = 3
_GONE_CODES = {1, 9, 15, 16, 18}
"""UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH.

After any of them, the device may support other things.
"""
_UNSUPPORTED_CODES = {_NOT_SUPPORTED, 13, 25, 26}
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED."""
_NO_ENTRY_CODES = {*_UNSUPPORTED_CODES, 2}
"""An older driver treats an entry that it lacks as an invalid argument."""

Device = int | str


@dataclass(slots=True)
class _PlannedCall:
    """A call, its first column, and the functions that may still be supported, the newest first."""

    call: NvmlCall
    remaining: tuple[str, ...]
    arguments: tuple[Device, ...]
    columns: tuple[Column, ...]
    picks: tuple[PickReading, ...]
    is_number: bool
    """True if the result is the only reading."""
    column: int = 0
    members: int = 0
    """Member count of the largest structure so far: one with fewer is incomplete."""
    last_number: int | None = None
    last_readings: Sequence[Reading] = ()
    """Readings in the last result that was a number, usually a mask of bits: it rarely changes."""

    @classmethod
    def create(cls, call: NvmlCall, device: Device, about: Entity) -> _PlannedCall:
        """A call that has not been tested for support yet."""
        arguments = (device, *call.arguments) if call.is_of_device else call.arguments
        picks = tuple(target.pick for target in call.targets)
        columns = _columns(call.targets, about)
        return cls(call, call.functions, arguments, columns, picks, picks == (whole,))

    def readings(self, result: Json) -> Sequence[Reading]:
        """Readings in a result; an unsupported member of an incomplete structure is an error."""
        if type(result) is int and result == self.last_number:
            return self.last_readings
        try:
            readings = [pick(result) for pick in self.picks]
        except answer_readings.MALFORMED_ERRORS:  # of one of them
            readings = [answer_readings.pick_reading(pick, result) for pick in self.picks]
        if isinstance(result, dict):
            self.members = max(self.members, len(result))
            if len(result) < self.members:
                return [Absent.ERROR if r is Absent.UNSUPPORTED else r for r in readings]
        elif type(result) is int:
            self.last_number, self.last_readings = result, readings
        return readings


@dataclass(slots=True)
class _BatchEntry:
    """An entry of the batch and its column; `remaining` are the entries still to be tried."""

    field: BatchField
    remaining: tuple[Device, ...]
    columns: tuple[Column, ...]
    column: int = 0


class CallPlan:
    """The calls and the batch of fields for one device: a GPU's index or a MIG device's UUID."""

    def __init__(self, device: Device, about: Entity, table: CallTable) -> None:
        self.is_complete = False
        """True once the device has answered, so that its unsupported calls are known."""
        self.is_outdated = False
        """True if parts that still have columns were found to be missing."""
        self._device = device
        self._about = about
        self._batch, self._recent = table.batch, table.recent
        self._calls = [_PlannedCall.create(call, device, about) for call in table.calls]
        entries = (
            _BatchEntry(field, field.entries, _columns([field.target], about))
            for field in table.fields
        )
        self._request_entries(list(entries))
        self._missing: list[tuple[CallTarget, Column]] = []
        self._unsupported: list[int] = []
        self._first = self._width = 0

    def detect_support(self, host: Host) -> None:
        """Make every call once, to detect what the device supports."""
        scratch = probe_result.ColumnBuilder()
        self.add_columns(scratch)
        self.read(host, row_builder.RowBuilder(len(scratch.columns)))

    def add_columns(self, columns: probe_result.ColumnBuilder) -> None:
        """Add the columns of what the device supports, and of what a whole device should support."""
        self._first = len(columns.columns)
        parts: list[_PlannedCall | _BatchEntry] = [*self._calls, *self._slots]
        for part in parts:
            part.column = len(columns.columns)
            columns.columns += part.columns
        self._missing = [
            (target, column) for target, column in self._missing if not target.is_of_part
        ]
        self._unsupported = [columns.add(*column) for _, column in self._missing]
        self._width = len(columns.columns) - self._first
        self.is_outdated = False

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Fill the device's columns; a failed call affects only its own. A lost device ends the read."""
        try:
            self._read_batch(host, into)
            for planned in self._calls:
                self._read_call(host, into, planned)
        except NvmlError as error:
            into.put_none(self._first, self._width, answer_readings.nvml_reason(error.code))
            self.is_complete = False
        else:
            self.is_complete = True
        if not all(planned.remaining for planned in self._calls):
            self._calls = [planned for planned in self._calls if planned.remaining]
        for column in self._unsupported:
            into.reasons[column] = Absent.UNSUPPORTED.value

    def _miss(self, targets: Sequence[CallTarget], part: _PlannedCall | _BatchEntry) -> None:
        self._missing += zip(targets, part.columns, strict=True)
        self._unsupported += range(part.column, part.column + len(targets))
        self.is_outdated |= any(target.is_of_part for target in targets)

    # Calls -------------------------------------------------------------------------------------

    def _read_call(self, host: Host, into: row_builder.RowBuilder, planned: _PlannedCall) -> None:
        """Fill a call's columns; functions that the driver lacks are tried only this once."""
        targets, column = planned.call.targets, planned.column
        while planned.remaining:
            try:
                result = host.call("nvml", planned.remaining[0], *planned.arguments)
            except NvmlError as error:
                if error.code in _GONE_CODES:
                    raise
                if error.code not in _UNSUPPORTED_CODES:
                    into.put_none(column, len(targets), answer_readings.nvml_reason(error.code))
                    return
            except FileNotFoundError:
                pass  # a recording without this call
            else:
                if planned.is_number and type(result) is int:
                    into.put(column, result)
                    return
                readings = planned.readings(result)
                if len(readings) == 1:
                    into.put(column, readings[0])
                else:
                    into.put_readings(column, readings)
                return
            planned.remaining = planned.remaining[1:]
        self._miss(targets, planned)

    # The batch ---------------------------------------------------------------------------------

    def _read_batch(self, host: Host, into: row_builder.RowBuilder) -> None:
        while self._slots:
            answer = self._call_batch(host)
            if isinstance(answer, Absent):
                into.put_each((slot.column for slot in self._slots), answer)
                return
            values, codes = answer
            if any(codes) and self._drop(codes):
                continue  # retry with the older entries
            self._fill(into, values, codes)
            return

    def _call_batch(self, host: Host) -> tuple[Json, Json] | Absent:
        """Values and codes of all entries; an absence reason if the call as a whole fails."""
        lacking = [_NOT_SUPPORTED] * len(self._slots)
        try:
            values, codes = host.call("nvml", self._batch, self._device, *self._entries)
            formed = len(values) == len(codes) == len(self._slots)
        except NvmlError as error:
            if error.code in _GONE_CODES:
                raise
            none = error.code in (_NO_ENTRY_CODES if self._recent else _UNSUPPORTED_CODES)
            return (lacking, lacking) if none else answer_readings.nvml_reason(error.code)
        except FileNotFoundError:
            return lacking, lacking
        except (TypeError, ValueError):  # unexpected form: a hand-written capture
            return Absent.ERROR
        return (values, codes) if formed and set(map(type, codes)) <= {int} else Absent.ERROR

    def _drop(self, codes: Json) -> bool:
        """Replace unsupported entries by older ones or by a call. Return True if there were any."""
        supported = []
        for slot, code in zip(self._slots, codes, strict=True):
            if code in _NO_ENTRY_CODES:
                slot.remaining = slot.remaining[1:]
            if slot.remaining:
                supported.append(slot)
            elif slot.field.otherwise:
                planned = _PlannedCall.create(slot.field.otherwise, self._device, self._about)
                planned.column = slot.column
                self._calls.append(planned)
            else:
                self._miss([slot.field.target], slot)
        self._request_entries(supported)
        return any(code in _NO_ENTRY_CODES for code in codes)

    def _request_entries(self, slots: list[_BatchEntry]) -> None:
        self._slots = slots
        self._entries = tuple(slot.remaining[0] for slot in slots)
        self._picks = tuple(slot.field.target.pick for slot in slots)
        self._are_numbers = set(self._picks) == {whole}

    def _fill(self, into: row_builder.RowBuilder, values: Json, codes: Json) -> None:
        """Put readings into their columns; in most reads all are numbers in adjacent columns."""
        first, last = self._slots[0].column, self._slots[-1].column
        if last - first == len(self._slots) - 1 and not any(codes):
            numbers: list[Any] = values if self._are_numbers else []
            with suppress(*answer_readings.MALFORMED_ERRORS):
                if not (self._are_numbers and set(map(type, values)) == {int}):
                    numbers = [pick(value) for pick, value in zip(self._picks, values, strict=True)]
            if set(map(type, numbers)) == {int}:
                into.put_all(first, numbers)
                return
        for slot, value, code in zip(self._slots, values, codes, strict=True):
            pick = slot.field.target.pick
            absent = answer_readings.nvml_reason(code) if code else None
            into.put(slot.column, absent or answer_readings.pick_reading(pick, value))


class CallPlans:
    """Plans of one source, retained between probes until the inventory changes."""

    def __init__(self, gpus: GpuInventory) -> None:
        self._gpus = gpus
        self._generation = -1
        self._plans: dict[tuple[Device, tuple[str, ...], bool], CallPlan] = {}

    def add_columns(
        self,
        host: Host,
        tables: Iterable[tuple[Device, Entity, CallTable]],
        columns: probe_result.ColumnBuilder,
        is_needed: Callable[[Metric], bool],
    ) -> None:
        """Place the columns of each device's plan; a plan is made, or reused from the last probe.

        A device that does not answer now keeps its previous plan. Metrics that are not needed are not read.
        """
        before, changed = self._plans, self.is_outdated
        plans: dict[tuple[Device, tuple[str, ...], bool], CallPlan] = {}
        for device, about, table in tables:
            key = (device, about.key, table.recent)
            plan = old = before.get(key)
            if plan is None or changed or not plan.is_complete:
                plan = CallPlan(device, about, table.select(is_needed))
                plan.detect_support(host)
                if old and not plan.is_complete:
                    plan = old
            plan.add_columns(columns)
            plans[key] = plan
        self._generation, self._plans = self._gpus.generation, plans

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Fill the columns of all devices; newly missing parts and changed GPUs request a probe."""
        for plan in self._plans.values():
            plan.read(host, into)
        into.needs_probe |= self.is_outdated or any(
            plan.is_outdated for plan in self._plans.values()
        )

    @property
    def is_outdated(self) -> bool:
        """True if the inventory differs from that of the last probe."""
        return self._gpus.generation != self._generation


def _columns(targets: Iterable[CallTarget], about: Entity) -> tuple[Column, ...]:
    return tuple((target.metric, target.about(about)) for target in targets)
