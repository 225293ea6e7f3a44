"""What is asked of one device, and what it turned out not to have.

That is learned when a plan is made and not asked again; plans are made anew when the driver, the GPU
or its mode is another. What a whole GPU does not support keeps its column and says so; a part that
it does not have, like its eighth decoder or the error counters of another generation, gets none.
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
"""UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH: whatever
comes back may have other things."""
_DOES_NOT_HAVE = {_NOT_SUPPORTED, 13, 25, 26}
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED."""
_HAS_NO_ENTRY = {*_DOES_NOT_HAVE, 2}
"""An entry that an older driver does not know is an invalid argument to it."""

Device = int | str


@dataclass(slots=True)
class _Asked:
    """A call, its first column, and the functions that may still be there, the newest first."""

    call: Call
    left: list[str]
    arguments: tuple[Device, ...]
    columns: tuple[Column, ...]
    column: int = 0
    members: int = 0
    """Of the largest structure so far: one with fewer is incomplete."""

    @classmethod
    def of(cls, call: Call, device: Device, about: Entity) -> _Asked:
        """A call that nothing is known of yet."""
        arguments = (device, *call.arguments) if call.of_device else call.arguments
        return cls(call, list(call.functions), arguments, _columns(call.targets, about))

    def reading(self, target: Target, result: Json) -> Reading:
        """The reading in a result; what an incomplete structure does not support is an error."""
        reading = picked(target.pick, result)
        if isinstance(result, dict):
            self.members = max(self.members, len(result))
            if reading is Absent.UNSUPPORTED and len(result) < self.members:
                return Absent.ERROR
        return reading


@dataclass(slots=True)
class _Slot:
    """An entry of the batch and its column; `left` are the entries to try if it is not there."""

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
        """Whether the device has answered, so that what it does not have is known."""
        self.outgrown = False
        """Whether parts turned out to be missing that still have columns."""
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
        """Ask everything once, for what the device has."""
        scratch = Columns()
        self.place(scratch)
        self.read(host, Table(len(scratch.columns)))

    def place(self, columns: Columns) -> None:
        """Add the columns of what the device has, and of what a whole device should have."""
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
        """Fill the device's columns; what fails costs only its own. One that is gone is asked no more."""
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
        """Fill a call's columns; functions the driver does not have are asked this once."""
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
                pass  # a recording of a machine that was not asked
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
                continue  # other entries are to be asked for
            self._fill(into, values, codes)
            return

    def _ask_batch(self, host: Host) -> tuple[Json, Json] | Absent:
        """The values of all entries and their codes; a reason where the call as a whole fails."""
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
        except (TypeError, ValueError):  # of another form: a capture that was written by hand
            return Absent.ERROR
        return (values, codes) if formed and set(map(type, codes)) <= {int} else Absent.ERROR

    def _drop(self, codes: Json) -> bool:
        """Drop entries the device does not have, for older ones or a call; whether any was."""
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
        """Put readings into their columns; at most ticks all are numbers, side by side."""
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
    """The plans of one source, kept from probe to probe until what is there has changed."""

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
        """Make a plan for each device, or take up the one there is, and give it its columns.

        A device that does not answer now keeps what was known of it.
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
        """Fill the columns of all devices; parts found missing make the next read plan anew."""
        for plan in self._current:
            plan.read(host, into)
        into.grown |= any(plan.outgrown for plan in self._current)


def _columns(targets: Iterable[Target], about: Entity) -> tuple[Column, ...]:
    return tuple((target.metric, target.about(about)) for target in targets)
