"""Events of the NVIDIA driver, taken without waiting.

Events are numbered and the latest are given again at every call: who asks knows by the number what
is new, and a recording of the answers loses none.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from railscope.capture import Json

MOST_KEPT = 64
Latest = deque[list[int]]
WANTED = 0xFFFF & ~(0x4 | 0x10)
"""All of nvml.h but changes of performance state and clock, which come all the time."""

_NOT_SUPPORTED, _TIMEOUT = 3, 10
_OF_THE_DRIVER = {1, 9}  # UNINITIALIZED, DRIVER_NOT_LOADED


class EventQueue:
    """The driver's events of some GPUs.

    `latest` holds the last events of the process, and goes on from one queue to the next.
    """

    def __init__(self, module: ModuleType, gpus: Mapping[int, Any], latest: Latest) -> None:
        self._module = module
        self._latest = latest
        self._index = {_address(handle): index for index, handle in gpus.items()}
        self._set = module.nvmlEventSetCreate()
        registered = [self._register(handle) for handle in gpus.values()]
        if gpus and not any(registered):
            self.close()
            raise module.NVMLError(_NOT_SUPPORTED)

    def close(self) -> None:
        """Give the set back. Raises NVMLError."""
        self._module.nvmlEventSetFree(self._set)

    def _register(self, handle: Any) -> bool:
        """Ask for what this GPU has: one kind it does not have would fail the whole request."""
        module = self._module
        try:
            wanted = WANTED & module.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                module.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except module.NVMLError as error:
            if error.value in _OF_THE_DRIVER:
                raise
            return False
        return bool(wanted)

    def poll(self) -> Json:
        """The latest events, each as [number, GPU index, type, data, GPU and compute instance]."""
        module = self._module
        while True:
            try:
                event = module.nvmlEventSetWait_v2(self._set, 0)
            except module.NVMLError as error:
                if error.value == _TIMEOUT:
                    break
                raise
            number = self._latest[-1][0] + 1 if self._latest else 1
            index = self._index.get(_address(event.device), -1)
            self._latest.append(
                [
                    number, index, event.eventType, event.eventData, event.gpuInstanceId,
                    event.computeInstanceId,
                ]
            )  # fmt: skip
        return [list(event) for event in self._latest]


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
