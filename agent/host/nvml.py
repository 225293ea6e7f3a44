"""NVML through nvidia-ml-py; its answers are plain numbers, strings, lists and dictionaries here.

A GPU is named by its NVML index, a MIG device by its UUID. All calls must come from one thread.
pynvml is loaded at the first call, so that a server without GPUs does not pay for it.
"""

from __future__ import annotations

import ctypes
from _ctypes import dlclose
from collections import deque
from contextlib import suppress
from types import ModuleType
from typing import Any

from agent.host.nvml_events import MOST_KEPT, EventQueue, Latest
from agent.host.nvml_fields import FieldBatch
from agent.host.nvml_gpm import Monitor
from railscope.capture import Json, NvmlError

_SUCCESS, _UNINITIALIZED, _NOT_FOUND, _FUNCTION_NOT_FOUND = 0, 1, 6, 13
_DRIVER_NOT_LOADED, _VERSION_MISMATCH, _ARGUMENT_VERSION = 9, 18, 25
_START_ANEW = {_UNINITIALIZED, _DRIVER_NOT_LOADED}
_DEVICE_GONE = {2, 15, 16}  # INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED
_DEVICE = "nvmlDevice"
_NO_STAMP = 0

Device = int | str

# Calls that fill a structure of the caller's: its names and versions in pynvml, the newest first.
_FILLED = {
    "nvmlDeviceGetGpuFabricInfoV": (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlGpuFabricInfo_v3"),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"),
    ),
    "nvmlDeviceGetPlatformInfo": (
        ("c_nvmlPlatformInfo_v2_t", "nvmlPlatformInfo_v2"),
        ("c_nvmlPlatformInfo_v1_t", "nvmlPlatformInfo_v1"),
    ),
    "nvmlDeviceGetSramEccErrorStatus": (
        ("c_nvmlEccSramErrorStatus_v1_t", "nvmlEccSramErrorStatus_v1"),
    ),
}
# Calls that want the time stamp of the last sample they gave.
_SINCE_LAST = {"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetVgpuUtilization"}


class Nvml:
    """One initialised NVML library, the handles of its devices, and what is kept between calls."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._events: EventQueue | None = None
        self._latest_events: Latest = deque(maxlen=MOST_KEPT)
        self._monitors: dict[Device, Monitor] = {}
        self._forget()

    def call(self, function: str, *arguments: int | str) -> Json:
        """Call an NVML function; for `nvmlDevice...` the first argument is the device.

        Four are not quite NVML's own: `nvmlDeviceGetMigDevices(gpu)` lists MIG devices and makes
        them known, `nvmlGpmMetricsGet(device, metric, ...)` compares with the sample before,
        `nvmlDeviceGet[Process|Vgpu]Utilization(gpu)` goes on from its last sample, and
        `nvmlEventSetWait()` gives the latest events, numbered.
        Raises NvmlError with NVML's return code.
        """
        module = self._initialised()
        try:
            return self._call(module, function, arguments)
        except module.NVMLError as error:
            self._drop_what_failed(error.value, arguments)
            raise NvmlError(error.value, str(error)) from error

    def _call(self, module: ModuleType, function: str, arguments: tuple[Device, ...]) -> Json:
        if function == "nvmlEventSetWait":
            return self._wait(module)
        if function == "nvmlGpmMetricsGet":
            return self._activity(module, *arguments)
        if function == "nvmlDeviceGetMigDevices":
            return self._mig_devices(module, int(arguments[0]))
        target = getattr(module, function, None)
        if target is None:
            raise NvmlError(_FUNCTION_NOT_FOUND, function)
        if not arguments or not function.startswith(_DEVICE):
            return _plain(target(*arguments))
        device, *rest = arguments
        return self._ask(module, function, target, device, rest)

    def _drop_what_failed(self, code: int, arguments: tuple[Device, ...]) -> None:
        """Keep nothing of a driver or a device that is no more; it may come back as another."""
        if code in _START_ANEW:
            self._forget()
            self._module = None
        elif code in _DEVICE_GONE and arguments:
            self._handles.pop(arguments[0], None)
            self._monitors.pop(arguments[0], None)

    def _ask(
        self, module: ModuleType, function: str, target: Any, device: Device, rest: list[Device]
    ) -> Json:
        handle = self._handle(module, device)
        if function == "nvmlDeviceGetFieldValues":
            return self._fields(module, handle, tuple(rest))
        if function in _FILLED:
            return self._filled(module, function, target, handle)
        if function in _SINCE_LAST:
            return self._since_last(module, target, (function, device), handle)
        if function == "nvmlDeviceGetMemoryInfo":
            return _plain(target(handle, module.nvmlMemory_v2))
        return _plain(target(handle, *rest))

    def _fields(self, module: ModuleType, handle: Any, entries: tuple[Device, ...]) -> Json:
        batch = self._batches.get(entries)
        if batch is None:
            batch = self._batches[entries] = FieldBatch(module, entries)
        return batch.get(handle)

    def _filled(self, module: ModuleType, function: str, target: Any, handle: Any) -> Json:
        for structure, version in _FILLED[function]:
            if not hasattr(module, structure):
                continue
            space = getattr(module, structure)()
            space.version = getattr(module, version)
            try:
                target(handle, ctypes.byref(space))
            except module.NVMLError as error:
                if error.value != _ARGUMENT_VERSION:
                    raise
            else:
                return _plain(space)
        raise NvmlError(_ARGUMENT_VERSION, function)

    def _since_last(
        self, module: ModuleType, target: Any, key: tuple[str, Device], handle: Any
    ) -> Json:
        try:
            samples = _plain(target(handle, self._stamps.get(key, _NO_STAMP)))
        except module.NVMLError as error:
            if error.value == _SUCCESS:  # pynvml raises even this, where there is no sample
                return []
            raise
        stamps = [sample["timeStamp"] for sample in samples]
        self._stamps[key] = max([self._stamps.get(key, _NO_STAMP), *stamps])
        return samples

    def _activity(self, module: ModuleType, device: Device, *metrics: int | str) -> Json:
        monitor = self._monitors.get(device)
        if monitor is None:
            gpu, instance = self._mig.get(str(device), (device, None))
            handle = self._handle(module, gpu)
            monitor = self._monitors[device] = Monitor(module, handle, instance)
        return monitor.read(tuple(int(metric) for metric in metrics))

    def _mig_devices(self, module: ModuleType, gpu: int) -> Json:
        """The MIG devices of a GPU: UUID, and the GPU instance and compute instance behind it."""
        parent = self._handle(module, gpu)
        known = {uuid for uuid, (owner, _) in self._mig.items() if owner == gpu}
        found: dict[str, Json] = {}
        for index in range(module.nvmlDeviceGetMaxMigDeviceCount(parent)):
            try:
                handle = module.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except module.NVMLError as error:
                if error.value == _NOT_FOUND:
                    continue  # a hole between the devices there are
                raise
            uuid = _plain(module.nvmlDeviceGetUUID(handle))
            instance = module.nvmlDeviceGetGpuInstanceId(handle)
            part = module.nvmlDeviceGetComputeInstanceId(handle)
            self._handles[uuid], self._mig[uuid] = handle, (gpu, instance)
            found[uuid] = {"uuid": uuid, "index": index, "gpu": instance, "compute": part}
        for uuid in known - set(found):
            self._handles.pop(uuid, None)
            self._mig.pop(uuid, None)
            if monitor := self._monitors.pop(uuid, None):
                monitor.close()
        return list(found.values())

    def _wait(self, module: ModuleType) -> Json:
        if self._events is None:
            for index in range(module.nvmlDeviceGetCount()):
                with suppress(module.NVMLError):  # one that is lost has no events to give
                    self._handle(module, index)
            gpus = {gpu: h for gpu, h in self._handles.items() if isinstance(gpu, int)}
            self._events = EventQueue(module, gpus, self._latest_events)
        try:
            answer = self._events.poll()
        except module.NVMLError:
            self._events.close()
            self._events = None  # a GPU is no more: register those that are left
            raise
        return answer

    def _initialised(self) -> ModuleType:
        if self._module is None:
            import pynvml  # noqa: PLC0415 - see the module's docstring

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                if error.value == _VERSION_MISMATCH:
                    _unload(pynvml)
                raise NvmlError(error.value, str(error)) from error
            self._module = pynvml
        return self._module

    def _handle(self, module: ModuleType, device: Device) -> Any:
        if device not in self._handles:
            if isinstance(device, str):
                raise NvmlError(_NOT_FOUND, f"no MIG device {device}")
            self._handles[device] = module.nvmlDeviceGetHandleByIndex(device)
            if self._events:
                self._events.close()
                self._events = None  # to be registered with this GPU among the others
        return self._handles[device]

    def _forget(self) -> None:
        """Drop what belonged to the driver as it was; events go on being numbered.

        Samples and event sets are not given back: there is no one left to take them.
        """
        self._handles: dict[Device, Any] = {}
        self._mig: dict[str, tuple[int, int]] = {}
        self._batches: dict[tuple[Device, ...], FieldBatch] = {}
        self._monitors = {}
        self._stamps: dict[tuple[str, Device], int] = {}
        self._events = None

    def close(self) -> None:
        """Shut NVML down if it was ever initialised."""
        module, self._module = self._module, None
        if module is None:
            return
        try:
            for monitor in self._monitors.values():
                monitor.close()
            if self._events:
                self._events.close()
            module.nvmlShutdown()
        except module.NVMLError as error:
            raise NvmlError(error.value, str(error)) from error


def _unload(pynvml: Any) -> None:
    """Let go of a library that does not fit the kernel's driver.

    The next start then loads the one that is installed by then, which an update may have replaced.
    """
    library, pynvml.nvmlLib = pynvml.nvmlLib, None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it points into the library
    if library is not None:
        dlclose(library._handle)  # noqa: SLF001 - ctypes has no public way


def _plain(value: Any) -> Json:
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Union):
        return int.from_bytes(bytes(value), "little")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple | ctypes.Array):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, int | float | str):
        return value
    return {name: _plain(item) for name, item in vars(value).items()}  # pynvml's friendly objects
