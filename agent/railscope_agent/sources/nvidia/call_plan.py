"""Plans of NVML calls for one device.

Support is detected when a plan is made and not tested again; plans are rebuilt when the driver, the
GPU or its mode changes. A metric of a whole GPU that is unsupported keeps its column, as absent; a
part that the GPU lacks, like an eighth decoder or the error counters of another generation, has no
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import answer_readings, probe_result, row_builder
from railscope_agent.sources.nvidia.call_table import (
    BatchField,
    CallTable,
    CallTarget,
    NvmlCall,
    PickReading,
    whole,
)

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
        # `type` and not `isinstance`: True equals 1, but is no number.
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
        # Columns are known only after the calls: those of unsupported parts are left out of the real ones.
        scratch = probe_result.ColumnBuilder()
        self.add_columns(scratch)
        self.read(host, row_builder.RowBuilder(len(scratch.columns)))

    def add_columns(self, columns: probe_result.ColumnBuilder) -> None:
        """Add the columns of what the device supports, and of what a whole device should support."""
        self._first = len(columns.columns)
        planned: list[_PlannedCall | _BatchEntry] = [*self._calls, *self._requested]
        for call_or_entry in planned:
            call_or_entry.column = len(columns.columns)
            columns.columns += call_or_entry.columns
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
        # After the loop: removing calls while it runs would skip the next one.
        if not all(planned.remaining for planned in self._calls):
            self._calls = [planned for planned in self._calls if planned.remaining]
        for column in self._unsupported:
            into.reasons[column] = Absent.UNSUPPORTED.value

    def _miss(self, targets: Sequence[CallTarget], planned: _PlannedCall | _BatchEntry) -> None:
        self._missing += zip(targets, planned.columns, strict=True)
        self._unsupported += range(planned.column, planned.column + len(targets))
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
                # A temporary failure is no evidence about support: the newest function is called again next
                # time.
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
        while self._requested:
            answer = self._call_batch(host)
            if isinstance(answer, Absent):
                into.put_each((entry.column for entry in self._requested), answer)
                return
            values, codes = answer
            if any(codes) and self._drop(codes):
                continue  # retry with the older entries
            self._fill(into, values, codes)
            return

    def _call_batch(self, host: Host) -> tuple[Json, Json] | Absent:
        """Values and codes of all entries; an absence reason if the call as a whole fails."""
        lacking = [_NOT_SUPPORTED] * len(self._requested)
        try:
            values, codes = host.call("nvml", self._batch, self._device, *self._entries)
            formed = len(values) == len(codes) == len(self._requested)
        except NvmlError as error:
            if error.code in _GONE_CODES:
                raise
            # Otherwise an invalid argument is a vanished device, whose support is unknown.
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
        for entry, code in zip(self._requested, codes, strict=True):
            if code in _NO_ENTRY_CODES:
                entry.remaining = entry.remaining[1:]
            if entry.remaining:
                supported.append(entry)
            elif entry.field.otherwise:
                planned = _PlannedCall.create(entry.field.otherwise, self._device, self._about)
                planned.column = entry.column
                self._calls.append(planned)
            else:
                self._miss([entry.field.target], entry)
        self._request_entries(supported)
        return any(code in _NO_ENTRY_CODES for code in codes)

    def _request_entries(self, entries: list[_BatchEntry]) -> None:
        self._requested = entries
        self._entries = tuple(entry.remaining[0] for entry in entries)
        self._picks = tuple(entry.field.target.pick for entry in entries)
        self._are_numbers = set(self._picks) == {whole}

    def _fill(self, into: row_builder.RowBuilder, values: Json, codes: Json) -> None:
        """Put readings into their columns; in most reads all are numbers in adjacent columns."""
        first, last = self._requested[0].column, self._requested[-1].column
        # Bulk assignment needs adjacent columns; a gap appears when an entry was replaced by a call.
        if last - first == len(self._requested) - 1 and not any(codes):
            numbers: list[Any] = values if self._are_numbers else []
            with suppress(*answer_readings.MALFORMED_ERRORS):
                if not (self._are_numbers and set(map(type, values)) == {int}):
                    numbers = [pick(value) for pick, value in zip(self._picks, values, strict=True)]
            if set(map(type, numbers)) == {int}:
                into.put_all(first, numbers)
                return
        for entry, value, code in zip(self._requested, values, codes, strict=True):
            pick = entry.field.target.pick
            absent = answer_readings.nvml_reason(code) if code else None
            into.put(entry.column, absent or answer_readings.pick_reading(pick, value))


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
            # The entity is a part of the key: another GPU may have the same index after a change of the bus.
            key = (device, about.key, table.recent)
            plan = old = before.get(key)
            if plan is None or changed or not plan.is_complete:
                plan = CallPlan(device, about, table.select(is_needed))
                plan.detect_support(host)
                # The new plan has not seen what the device supports: the old one keeps its columns.
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
