"""Calls for one device, and those found to be unsupported.

Support is detected when a plan is made and not tested again; plans are rebuilt when the driver, the
GPU or its mode changes. A metric of a whole GPU that is unsupported keeps its column, as absent; a
part that the GPU lacks, like an eighth decoder or the error counters of another generation, has no
column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent.host import Host, Json, NvmlError
from agent.sampling.source import OTHER_FORM, Columns, Table, nvml_reason, picked
from agent.sources.nvidia.calls import Call, Field, Questions, Target
from railscope.entity import Entity
from railscope.frame import Column
from railscope.reading import Absent, Reading

_NOT_SUPPORTED = 3
_GONE = {1, 9, 15, 16, 18}
"""UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH.

After any of them, the device may support other things.
"""
_DOES_NOT_HAVE = {_NOT_SUPPORTED, 13, 25, 26}
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED."""
_HAS_NO_ENTRY = {*_DOES_NOT_HAVE, 2}
"""An older driver treats an entry that it lacks as an invalid argument."""

Device = int | str


@dataclass(slots=True)
class _Asked:
    """A call, its first column, and the functions that may still be supported, the newest first."""

    call: Call
    left: list[str]
    arguments: tuple[Device, ...]
    columns: tuple[Column, ...]
    column: int = 0
    members: int = 0
    """Member count of the largest structure so far: one with fewer is incomplete."""

    @classmethod
    def of(cls, call: Call, device: Device, about: Entity) -> _Asked:
        """A call that has not been tested for support yet."""
        arguments = (device, *call.arguments) if call.of_device else call.arguments
        return cls(call, list(call.functions), arguments, _columns(call.targets, about))

    def reading(self, target: Target, result: Json) -> Reading:
        """Reading in a result; an unsupported member of an incomplete structure is an error."""
        reading = picked(target.pick, result)
        if isinstance(result, dict):
            self.members = max(self.members, len(result))
            if reading is Absent.UNSUPPORTED and len(result) < self.members:
                return Absent.ERROR
        return reading


@dataclass(slots=True)
class _Slot:
    """An entry of the batch and its column; `left` are the entries still to be tried."""

    field: Field
    left: list[Device]
    columns: tuple[Column, ...]
    column: int = 0

    @property
    def entry(self) -> Device:
        return self.left[0]


class Plan:
    """The calls and the batch of fields for one device: a GPU's index or a MIG device's UUID."""

    def __init__(self, device: Device, about: Entity, questions: Questions) -> None:
        self.learnt = False
        """True once the device has answered, so that its unsupported calls are known."""
        self.outgrown = False
        """True if parts that still have columns were found to be missing."""
        self._device = device
        self._about = about
        self._batch, self._recent = questions.batch, questions.recent
        self._calls = [_Asked.of(call, device, about) for call in questions.calls]
        self._ask_for(
            [
                _Slot(field, list(field.entries), _columns([field.target], about))
                for field in questions.fields
            ]
        )
        self._missing: list[tuple[Target, Column]] = []
        self._unsupported: list[int] = []
        self._first = self._width = 0

    def learn(self, host: Host) -> None:
        """Make every call once, to detect what the device supports."""
        scratch = Columns()
        self.place(scratch)
        self.read(host, Table(len(scratch.columns)))

    def place(self, columns: Columns) -> None:
        """Add the columns of what the device supports, and of what a whole device should support."""
        self._first = len(columns.columns)
        parts: list[_Asked | _Slot] = [*self._calls, *self._slots]
        for part in parts:
            part.column = len(columns.columns)
            columns.columns += part.columns
        self._missing = [(target, column) for target, column in self._missing if not target.of_part]
        self._unsupported = [columns.add(*column) for _, column in self._missing]
        self._width = len(columns.columns) - self._first
        self.outgrown = False

    def read(self, host: Host, into: Table) -> None:
        """Fill the device's columns; a failed call affects only its own. A lost device ends the read."""
        try:
            self._read_batch(host, into)
            for asked in self._calls:
                self._read_call(host, into, asked)
        except NvmlError as error:
            into.put_none(self._first, self._width, nvml_reason(error.code))
            self.learnt = False
        else:
            self.learnt = True
        if not all(asked.left for asked in self._calls):
            self._calls = [asked for asked in self._calls if asked.left]
        for column in self._unsupported:
            into.reasons[column] = Absent.UNSUPPORTED.value

    def _miss(self, targets: Sequence[Target], part: _Asked | _Slot) -> None:
        self._missing += zip(targets, part.columns, strict=True)
        self._unsupported += range(part.column, part.column + len(targets))
        self.outgrown |= any(target.of_part for target in targets)

    # Calls -------------------------------------------------------------------------------------

    def _read_call(self, host: Host, into: Table, asked: _Asked) -> None:
        """Fill a call's columns; functions that the driver lacks are tried only this once."""
        targets, column = asked.call.targets, asked.column
        while asked.left:
            try:
                result = host.call("nvml", asked.left[0], *asked.arguments)
            except NvmlError as error:
                if error.code in _GONE:
                    raise
                if error.code not in _DOES_NOT_HAVE:
                    into.put_none(column, len(targets), nvml_reason(error.code))
                    return
            except FileNotFoundError:
                pass  # a recording without this call
            else:
                for place, target in enumerate(targets, column):
                    into.put(place, asked.reading(target, result))
                return
            del asked.left[0]
        self._miss(targets, asked)

    # The batch ---------------------------------------------------------------------------------

    def _read_batch(self, host: Host, into: Table) -> None:
        while self._slots:
            answer = self._ask_batch(host)
            if isinstance(answer, Absent):
                for slot in self._slots:
                    into.put(slot.column, answer)
                return
            values, codes = answer
            if any(codes) and self._drop(codes):
                continue  # retry with the older entries
            self._fill(into, values, codes)
            return

    def _ask_batch(self, host: Host) -> tuple[Json, Json] | Absent:
        """Values and codes of all entries; an absence reason if the call as a whole fails."""
        lacking = [_NOT_SUPPORTED] * len(self._slots)
        try:
            values, codes = host.call("nvml", self._batch, self._device, *self._entries)
            formed = len(values) == len(codes) == len(self._slots)
        except NvmlError as error:
            if error.code in _GONE:
                raise
            none = error.code in (_HAS_NO_ENTRY if self._recent else _DOES_NOT_HAVE)
            return (lacking, lacking) if none else nvml_reason(error.code)
        except FileNotFoundError:
            return lacking, lacking
        except (TypeError, ValueError):  # unexpected form: a hand-written capture
            return Absent.ERROR
        return (values, codes) if formed and set(map(type, codes)) <= {int} else Absent.ERROR

    def _drop(self, codes: Json) -> bool:
        """Replace unsupported entries by older ones or by a call. Return True if there were any."""
        kept = []
        for slot, code in zip(self._slots, codes, strict=True):
            if code in _HAS_NO_ENTRY:
                del slot.left[0]
            if slot.left:
                kept.append(slot)
            elif slot.field.otherwise:
                asked = _Asked.of(slot.field.otherwise, self._device, self._about)
                asked.column = slot.column
                self._calls.append(asked)
            else:
                self._miss([slot.field.target], slot)
        self._ask_for(kept)
        return any(code in _HAS_NO_ENTRY for code in codes)

    def _ask_for(self, slots: list[_Slot]) -> None:
        self._slots = slots
        self._entries = tuple(slot.entry for slot in slots)
        self._picks = tuple(slot.field.target.pick for slot in slots)

    def _fill(self, into: Table, values: Json, codes: Json) -> None:
        """Put readings into their columns; in most reads all are numbers in adjacent columns."""
        first, last = self._slots[0].column, self._slots[-1].column
        if last - first == len(self._slots) - 1 and not any(codes):
            numbers: list[Any] = []
            with suppress(*OTHER_FORM):
                numbers += [pick(value) for pick, value in zip(self._picks, values, strict=True)]
            if set(map(type, numbers)) == {int}:
                into.put_all(first, numbers)
                return
        for slot, value, code in zip(self._slots, values, codes, strict=True):
            reading = nvml_reason(code) if code else picked(slot.field.target.pick, value)
            into.put(slot.column, reading)


class Plans:
    """Plans of one source, retained between probes until the inventory changes."""

    def __init__(self) -> None:
        self.generation = -1
        self._kept: dict[tuple[Device, tuple[str, ...], bool], Plan] = {}
        self._current: list[Plan] = []

    def place(
        self,
        host: Host,
        generation: int,
        wanted: Iterable[tuple[Device, Entity, Questions]],
        columns: Columns,
    ) -> None:
        """Place the columns of each device's plan; a plan is made, or reused from the last probe.

        A device that does not answer now keeps its previous plan.
        """
        before, changed = self._kept, generation != self.generation
        kept: dict[tuple[Device, tuple[str, ...], bool], Plan] = {}
        for device, about, questions in wanted:
            key = (device, about.key, questions.recent)
            old = before.get(key)
            plan = old
            if plan is None or changed or not plan.learnt:
                plan = Plan(device, about, questions)
                plan.learn(host)
                if old and not plan.learnt:
                    plan = old
            plan.place(columns)
            kept[key] = plan
        self.generation, self._kept = generation, kept
        self._current = list(kept.values())

    def read(self, host: Host, into: Table) -> None:
        """Fill the columns of all devices; newly missing parts request another probe."""
        for plan in self._current:
            plan.read(host, into)
        into.grown |= any(plan.outgrown for plan in self._current)


def _columns(targets: Iterable[Target], about: Entity) -> tuple[Column, ...]:
    return tuple((target.metric, target.about(about)) for target in targets)
