"""NVML through nvidia-ml-py; its answers are plain numbers, strings, lists and dictionaries here.

A GPU is named by its NVML index. All calls must come from one thread. pynvml is loaded at the first
call, so that a server without GPUs does not pay for it.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from railscope.capture import Json, NvmlError

_DRIVER_NOT_LOADED, _UNINITIALIZED, _FUNCTION_NOT_FOUND, _IS_LOST = 9, 1, 13, 15
_FORGET_HANDLES = {_UNINITIALIZED, _DRIVER_NOT_LOADED, _IS_LOST}
_GPU = "nvmlDevice"


class Nvml:
    """One initialised NVML library, and the handles of its GPUs."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._handles: dict[int, Any] = {}

    def call(self, function: str, *arguments: int | str) -> Json:
        """Call an NVML function; for `nvmlDevice...` the first argument is the GPU's index.

        Raises NvmlError with NVML's return code.
        """
        module = self._initialised()
        if function == "nvmlDeviceGetCount":
            return self._guarded(module, module.nvmlDeviceGetCount)
        target = getattr(module, function, None)
        if target is None:
            raise NvmlError(_FUNCTION_NOT_FOUND, function)
        if not function.startswith(_GPU):
            return _plain(self._guarded(module, target, *arguments))
        index, *rest = arguments
        handle = self._handle(module, int(index))
        if function == "nvmlDeviceGetFieldValues":
            return _fields(self._guarded(module, target, handle, [int(field) for field in rest]))
        if function == "nvmlDeviceGetMemoryInfo":
            return _plain(self._guarded(module, target, handle, module.nvmlMemory_v2))
        return _plain(self._guarded(module, target, handle, *rest))

    def _initialised(self) -> ModuleType:
        if self._module is None:
            import pynvml  # noqa: PLC0415 - see the module's docstring

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                raise NvmlError(error.value, str(error)) from error
            self._module = pynvml
        return self._module

    def _handle(self, module: ModuleType, index: int) -> Any:
        if index not in self._handles:
            get = module.nvmlDeviceGetHandleByIndex
            self._handles[index] = self._guarded(module, get, index)
        return self._handles[index]

    def _guarded(self, module: ModuleType, target: Any, *arguments: Any) -> Any:
        try:
            return target(*arguments)
        except module.NVMLError as error:
            if error.value in _FORGET_HANDLES:
                self._handles.clear()
            if error.value in {_UNINITIALIZED, _DRIVER_NOT_LOADED}:
                self._module = None
            raise NvmlError(error.value, str(error)) from error

    def close(self) -> None:
        """Shut NVML down if it was ever initialised."""
        if self._module is not None:
            self._guarded(self._module, self._module.nvmlShutdown)
            self._module = None


def _plain(value: Any) -> Json:
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | ctypes.Array):
        return [_plain(item) for item in value]
    return value


# Which member of nvmlValue_t holds the value: nvmlValueType_t of nvml.h.
_UNSIGNED_WHATEVER_THEY_SAY = {82}  # MEMORY_TEMP: some drivers mislabel its type
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _fields(values: Any) -> Json:
    """Field values as [return code, value] each."""
    answers: list[Json] = []
    for entry in values:
        if entry.fieldId in _UNSIGNED_WHATEVER_THEY_SAY:
            value = entry.value.uiVal
        elif 0 <= entry.valueType < len(_MEMBERS):
            value = getattr(entry.value, _MEMBERS[entry.valueType])
        else:
            value = 0
        answers.append([int(entry.nvmlReturn), value])
    return answers
