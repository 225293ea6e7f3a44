"""What is asked of one device, and what it turned out not to support.

That is learned at the first read and not asked again; a new plan, made at every probe, learns anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.host import Host, Json, NvmlError
from agent.source import Columns, Table, nvml_reason
from agent.sources.nvidia.calls import Call, Field, Questions, Target
from railscope.entity import Entity
from railscope.reading import Absent, Reading

_NOT_SUPPORTED, _LOST = 3, 15
_DOES_NOT_HAVE = {_NOT_SUPPORTED, 13, 25, 26}
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED."""
_HAS_NO_ENTRY = {*_DOES_NOT_HAVE, 2}
"""An entry that an older driver does not know is an invalid argument to it."""


@dataclass(slots=True)
class _Asked:
    """A call, its first column, and the functions that may still be there, the newest first."""

    call: Call
    column: int
    left: list[str]


@dataclass(slots=True)
class _Slot:
    """An entry of the batch and its column; `left` are the entries to try if it is not there."""

    field: Field
    column: int
    left: list[int | str]

    @property
    def entry(self) -> int | str:
        return self.left[0]


class Plan:
    """The calls and the batch of fields for one device: a GPU's index or a MIG device's UUID."""

    def __init__(
        self, device: int | str, about: Entity, questions: Questions, columns: Columns
    ) -> None:
        self._device = device
        self._batch = questions.batch
        self._calls: list[_Asked] = []
        self._slots: list[_Slot] = []
        self._unsupported: list[int] = []
        self._first = len(columns.columns)
        for call in questions.calls:
            added = [columns.add(target.metric, target.about(about)) for target in call.targets]
            self._calls.append(_Asked(call, min(added), list(call.functions)))
        for field in questions.fields:
            column = columns.add(field.target.metric, field.target.about(about))
            self._slots.append(_Slot(field, column, list(field.entries)))
        self._width = len(columns.columns) - self._first
        self._entries = tuple(slot.entry for slot in self._slots)

    def read(self, host: Host, into: Table) -> None:
        """Fill the device's columns; what fails costs only its own. A lost device is asked no more."""
        try:
            self._read_batch(host, into)
            for asked in self._calls:
                self._read_call(host, into, asked)
        except NvmlError as error:
            into.put_none(self._first, self._width, nvml_reason(error.code))
        if not all(asked.left for asked in self._calls):
            self._calls = [asked for asked in self._calls if asked.left]
        for column in self._unsupported:
            into.reasons[column] = Absent.UNSUPPORTED.value

    # Calls -------------------------------------------------------------------------------------

    def _read_call(self, host: Host, into: Table, asked: _Asked) -> None:
        """Fill a call's columns; functions the driver does not have are asked this once."""
        targets, column = asked.call.targets, asked.column
        about = (self._device,) if asked.call.of_device else ()
        while asked.left:
            try:
                result = host.call("nvml", asked.left[0], *about, *asked.call.arguments)
            except NvmlError as error:
                if error.code == _LOST:
                    raise
                if error.code not in _DOES_NOT_HAVE:
                    into.put_none(column, len(targets), nvml_reason(error.code))
                    return
            except FileNotFoundError:
                pass  # a recording of a machine that was not asked
            else:
                for place, target in enumerate(targets, column):
                    into.put(place, _picked(target, result))
                return
            del asked.left[0]
        self._unsupported += range(column, column + len(targets))

    # The batch ---------------------------------------------------------------------------------

    def _read_batch(self, host: Host, into: Table) -> None:
        while self._slots:
            try:
                values, codes = host.call("nvml", self._batch, self._device, *self._entries)
            except NvmlError as error:
                if error.code == _LOST:
                    raise
                if error.code not in _DOES_NOT_HAVE:
                    for slot in self._slots:
                        into.put(slot.column, nvml_reason(error.code))
                    return
                codes = [_NOT_SUPPORTED] * len(self._slots)
            except FileNotFoundError:
                codes = [_NOT_SUPPORTED] * len(self._slots)
            if any(codes) and self._learn(codes):
                continue  # other entries are to be asked for
            self._fill(into, values, codes)
            return

    def _fill(self, into: Table, values: Json, codes: Json) -> None:
        for slot, value, code in zip(self._slots, values, codes, strict=True):
            reading = nvml_reason(code) if code else _picked(slot.field.target, value)
            into.put(slot.column, reading)

    def _learn(self, codes: Json) -> bool:
        """Drop entries the device does not have, for older ones or a call; whether any was."""
        kept = []
        for slot, code in zip(self._slots, codes, strict=True):
            if code in _HAS_NO_ENTRY:
                del slot.left[0]
            if slot.left:
                kept.append(slot)
            elif slot.field.otherwise:
                otherwise = slot.field.otherwise
                self._calls.append(_Asked(otherwise, slot.column, list(otherwise.functions)))
            else:
                self._unsupported.append(slot.column)
        changed = any(code in _HAS_NO_ENTRY for code in codes)
        self._slots, self._entries = kept, tuple(slot.entry for slot in kept)
        return changed


def _picked(target: Target, answer: Json) -> Reading:
    """The reading in an answer; one of an unexpected form is an error of its own."""
    try:
        return target.pick(answer)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return Absent.ERROR
