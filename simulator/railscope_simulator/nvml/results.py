"""NVML results of one device, by call in the form of a capture, and driver events.

Each event has a number, and the newest are repeated in every result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache

from railscope.capture import CaptureMoment, Json, NvmlError, failure
from railscope_simulator import driver_reports, node_model

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST = (
    failure(NvmlError(code)) for code in (3, 4, 6, 10, 13, 15)
)

ALL_LINKS = 0xFFFF_FFFF
NO_INSTANCE = 0xFFFF_FFFF
FIELDS, GPM = "nvml.nvmlDeviceGetFieldValues", "nvml.nvmlGpmMetricsGet"
_MAX_KEYS = 1 << 14
"""More than the calls about the GPUs of a node, which have equal indices on all nodes."""


class NvmlResults:
    """Results of a device: a GPU's index, or the UUID of a MIG device.

    A field or GPM metric that is not added is unsupported by the device.
    """

    def __init__(self, device: int | str, found: dict[str, Json] | None = None) -> None:
        self.device = device
        self.found: dict[str, Json] = {} if found is None else found

    def call(self, name: str, answer: Json, *arguments: int) -> None:
        """Add the result of `nvmlDeviceGet` followed by a name."""
        self.found[_call_key(name, self.device, arguments)] = answer

    def calls(self, **answers: Json) -> None:
        """Add results of several calls without arguments other than the device."""
        for name, answer in answers.items():
            self.call(name, answer)

    def field(self, entry: int | str, value: int) -> None:
        """Add a field, or a field and its scope as "138:3"."""
        self.found[_field_keys(self.device, (entry,), None)[0]] = [0, value]

    def fields(self, values: Mapping[int, int], scope: int | None = None) -> None:
        """Add fields, all with the same scope."""
        found, keys = self.found, _field_keys(self.device, tuple(values), scope)
        for key, value in zip(keys, values.values(), strict=True):
            found[key] = [0, value]

    def metrics(self, values: Mapping[int, float]) -> None:
        """Add GPM metrics."""
        found, keys = self.found, _metric_keys(self.device, tuple(values))
        for key, value in zip(keys, values.values(), strict=True):
            found[key] = [0, value]


@lru_cache(_MAX_KEYS)
def _call_key(name: str, device: int | str, arguments: tuple[int, ...]) -> str:
    listed = ",".join(map(str, (device, *arguments)))
    return f"nvml.nvmlDeviceGet{name}({listed})"


@lru_cache(_MAX_KEYS)
def _field_keys(device: int | str, entries: tuple[int | str, ...], scope: int | None) -> list[str]:
    suffix = "" if scope is None else f":{scope}"
    return [f"{FIELDS}({device},{entry}{suffix})" for entry in entries]


@lru_cache(_MAX_KEYS)
def _metric_keys(device: int | str, numbers: tuple[int, ...]) -> list[str]:
    return [f"{GPM}({device},{number})" for number in numbers]


def supported_if(condition: object, answer: Json) -> Json:
    """Return the result if the condition holds, else "not supported"."""
    return answer if condition else NOT_SUPPORTED


_MAX_EVENTS = 256
"""More than one fault causes, and more than the agent leaves unread."""


class NvmlEventLog:
    """Events of a simulation, emitted as time passes."""

    def __init__(self) -> None:
        self._events: deque[Json] = deque(maxlen=_MAX_EVENTS)
        self._number = 0

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Add the events so far to a `CaptureMoment`."""
        for _, fault in model.scenario.onsets(model.span):
            for report in driver_reports.driver_reports(fault, model.machine):
                if report.event:
                    self._number += 1
                    self._events.append(
                        [
                            self._number,
                            fault.spec.affected_index,
                            *report.event,
                            NO_INSTANCE,
                            NO_INSTANCE,
                        ]
                    )
        into.calls["nvml.nvmlEventSetWait()"] = list(self._events)
