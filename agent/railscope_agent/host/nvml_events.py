"""Queue of the driver's events. Source: nvml.h."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from railscope.capture import Json
from railscope_agent.host.nvml_values import device_address

MAX_QUEUED_EVENTS = 64
EVENT_TYPES = 0xFFFF & ~(0x4 | 0x10)
"""All of nvml.h except changes of performance state and clock, which occur constantly."""

_NOT_SUPPORTED, _TIMEOUT = 3, 10
_OF_THE_DRIVER = {1, 9}  # UNINITIALIZED, DRIVER_NOT_LOADED


class EventQueue:
    """The driver's events, numbered from the start of the process; opened for a set of GPUs.

    Events are read without waiting. Every call returns the latest ones again: the caller detects new
    ones by their number, and a recording of the answers loses none.
    """

    def __init__(self) -> None:
        self._event_count = 0
        self._latest: deque[list[int]] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._module: ModuleType | None = None
        self._set: Any = None
        self._index: dict[int | None, int] = {}

    @property
    def is_open(self) -> bool:
        """True if events are followed."""
        return self._module is not None

    def open(self, module: ModuleType, gpus: Mapping[int, Any]) -> None:
        """Follow the events of GPUs, by their index. Raises NVMLError if no GPU has events."""
        self._set = module.nvmlEventSetCreate()
        self._module = module
        self._index = {device_address(handle): index for index, handle in gpus.items()}
        try:
            registered = [self._register(module, handle) for handle in gpus.values()]
        except module.NVMLError:
            self.close()
            raise
        if gpus and not any(registered):
            self.close()
            raise module.NVMLError(_NOT_SUPPORTED)

    def is_following(self, handle: Any) -> bool:
        """True if the events of a GPU are followed, or if the queue is closed."""
        return not self.is_open or device_address(handle) in self._index

    def _register(self, module: ModuleType, handle: Any) -> bool:
        """Register the event types that this GPU supports: one unsupported type would fail the request."""
        try:
            event_types = EVENT_TYPES & module.nvmlDeviceGetSupportedEventTypes(handle)
            if event_types:
                module.nvmlDeviceRegisterEvents(handle, event_types, self._set)
        except module.NVMLError as error:
            if error.value in _OF_THE_DRIVER:
                raise
            return False
        return bool(event_types)

    def take(self) -> Json:
        """The latest events, each as [number, GPU index, type, data, GPU and compute instance].

        Raises NVMLError, closed, if a GPU was lost and no event arrived since: the last events of a
        GPU are returned before the error.
        """
        module, count_before = self._module, self._event_count
        assert module is not None  # noqa: S101 - it was opened
        try:
            self._drain(module)
        except module.NVMLError as error:
            if error.value != _TIMEOUT:
                self.close()  # to be reopened for the remaining GPUs
                if self._event_count == count_before:
                    raise
        return [list(event) for event in self._latest]

    def close(self) -> None:
        """Drain pending events and free the set, if the driver still responds."""
        module, self._module = self._module, None
        if module is None:
            return
        with suppress(module.NVMLError):
            self._drain(module)
        with suppress(module.NVMLError):
            module.nvmlEventSetFree(self._set)

    def _drain(self, module: ModuleType) -> None:
        """Read events until the driver raises NVMLError, finally TIMEOUT."""
        while True:
            # Timeout 0: the call returns at once, so the thread of the driver is free for other calls.
            event = module.nvmlEventSetWait_v2(self._set, 0)
            self._event_count += 1
            index = self._index.get(device_address(event.device), -1)
            instances = event.gpuInstanceId, event.computeInstanceId
            self._latest.append(
                [self._event_count, index, event.eventType, event.eventData, *instances]
            )
