"""NVML through nvidia-ml-py; answers are converted to plain numbers, strings, lists and dictionaries.

pynvml is imported at the first start of the library, so that a node without GPUs has no cost.

A GPU is identified by its NVML index, a MIG device by its UUID. Calls for one device are
serialized; calls for different devices are not, so that a GPU with a hanging driver blocks no other
(nvml.h states that the library is thread-safe). Usually all calls come from one thread.
"""

from __future__ import annotations

import ctypes
import threading
import time
from _ctypes import dlclose
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from railscope.capture import Json, NvmlError
from railscope_agent.host.nvml_events import EventQueue
from railscope_agent.host.nvml_fields import FieldBatch
from railscope_agent.host.nvml_gpm import GpmMonitor
from railscope_agent.host.nvml_values import device_address, to_plain

_VERSION_MISMATCH = 18


def start_nvml() -> ModuleType:
    """Initialise NVML and return its module. Raises NvmlError on failure."""
    import pynvml  # noqa: PLC0415 - see the module's docstring

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == _VERSION_MISMATCH:
            _unload(pynvml)
        raise NvmlError(error.value, str(error)) from error
    module: ModuleType = pynvml
    return module


def _unload(pynvml: Any) -> None:
    """Unload a library that does not match the kernel's driver.

    The next start then loads the library installed by that time, which an update may have replaced.
    """
    library, pynvml.nvmlLib = pynvml.nvmlLib, None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it points into the library
    if library is not None:
        dlclose(library._handle)  # noqa: SLF001 - ctypes has no public way


_SUCCESS, _INVALID_ARGUMENT, _NOT_FOUND, _FUNCTION_NOT_FOUND = 0, 2, 6, 13
_ARGUMENT_VERSION, _UNKNOWN = 25, 999
_RESTART_CODES = {1, 9, 18}  # UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH
_DEVICE_GONE = {15, 16}  # GPU_IS_LOST, RESET_REQUIRED
_DEVICE = "nvmlDevice"
_OF_DEVICE, _SYSTEM = (_DEVICE, "nvmlGpm"), ""
_SAMPLE_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member that holds a sample's value, by nvmlValueType_t."""
_NO_STAMP = 0
_UTILIZATION_SAMPLES = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetVgpuUtilization")

Device = int | str

# Calls that fill a structure of the caller: its names and versions in pynvml, the newest first. The
# oldest structures have no version.
_VERSIONED_STRUCTURES = {
    "nvmlDeviceGetGpuFabricInfoV": (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlGpuFabricInfo_v3"),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"),
    ),
    "nvmlDeviceGetGpuFabricInfo": (("c_nvmlGpuFabricInfo_t", ""),),  # the only one of driver 535
    "nvmlDeviceGetPlatformInfo": (
        ("c_nvmlPlatformInfo_v2_t", "nvmlPlatformInfo_v2"),
        ("c_nvmlPlatformInfo_v1_t", "nvmlPlatformInfo_v1"),
    ),
    "nvmlDeviceGetSramEccErrorStatus": (
        ("c_nvmlEccSramErrorStatus_v1_t", "nvmlEccSramErrorStatus_v1"),
    ),
}


class Nvml:
    """One initialized NVML library, the handles of its devices, and the state between calls."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._device_locks: dict[Device, threading.Lock] = {}
        """Lock of each device: an abandoned thread may still be stuck in a call for it."""
        self._start_lock = threading.Lock()
        self._module: ModuleType | None = None
        self._events = EventQueue()
        self._replacements: dict[str, Callable[..., Json]] = {
            "nvmlGpmMetricsGet": self._activity,
            "nvmlEventSetWait": self._wait,
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMigDevices": self._mig_devices,
            **{name: partial(self._since_last, name) for name in _UTILIZATION_SAMPLES},
            "nvmlDeviceGetSamples": self._take_samples,
            "nvmlVgpuInstanceGetFbUsage": self._vgpu_memory,
        }
        self._reset()

    def call(self, function: str, *arguments: Device) -> Json:
        """Call an NVML function; for `nvmlDevice...` the first argument is the device.

        Some functions differ from NVML's own: `nvmlDeviceGetMigDevices(gpu)` lists MIG devices and
        registers their handles, `nvmlGpmMetricsGet(device, metric, ...)` compares with the previous
        sample, `nvmlDeviceGet[Process|Vgpu]Utilization(gpu)` continues after its last sample, as
        does `nvmlDeviceGetSamples(gpu, kind)`, which returns pairs of time (us) and value, and
        `nvmlEventSetWait()` returns the latest events, numbered. Raises NvmlError with NVML's
        return code.
        """
        device = arguments[0] if arguments and function.startswith(_OF_DEVICE) else _SYSTEM
        # `setdefault` is one step of the interpreter: two threads never get different locks.
        with self._device_locks.setdefault(device, threading.Lock()):
            return self._call(function, arguments)

    def _start(self) -> ModuleType:
        with self._start_lock:
            self._module = self._module or start_nvml()
            return self._module

    def _call(self, function: str, arguments: tuple[Device, ...]) -> Json:
        module = self._module or self._start()
        try:
            bound_call = self._bound_calls.get((function, arguments)) or self._bind_call(
                module, function, arguments
            )
            return bound_call()
        except module.NVMLError as error:
            self._drop_failed_handles(error.value, arguments)
            raise NvmlError(error.value, str(error)) from error
        except UnicodeDecodeError as error:  # for example, text of a damaged InfoROM
            raise NvmlError(_UNKNOWN, f"{function} returned no text") from error

    def close(self) -> None:
        """Shut NVML down if it was initialized; resources that the driver rejects are abandoned."""
        module, self._module = self._module, None
        if module is None:
            return
        # A copy: dropping changes the dictionary.
        for device in [*self._monitors]:
            self._drop(device)
        self._events.close()
        with suppress(module.NVMLError):
            module.nvmlShutdown()
        self._reset()

    def _bind_call(
        self, module: ModuleType, function: str, arguments: tuple[Device, ...]
    ) -> Callable[[], Json]:
        """Callable for a function and its arguments; cached for device calls until a device is dropped."""
        replacement = self._replacements.get(function)
        if replacement is not None:
            return partial(replacement, module, *arguments)
        target = getattr(module, function, None)
        if target is None:
            raise NvmlError(_FUNCTION_NOT_FOUND, function)
        if not arguments or not function.startswith(_DEVICE):
            return partial(_plain_result, target, *arguments)
        device, *rest = arguments
        handle = self._handle(module, device)
        bound_call: Callable[[], Json]
        if function == "nvmlDeviceGetFieldValues":
            bound_call = FieldBatch(module, handle, rest).get
        elif function in _VERSIONED_STRUCTURES:
            bound_call = partial(_filled_structure, module, target, handle, function)
        elif function == "nvmlDeviceGetMemoryInfo":
            bound_call = partial(self._memory, module, target, handle, (function, arguments))
        else:
            bound_call = partial(_plain_result, target, handle, *rest)
        self._bound_calls[function, arguments] = bound_call
        return bound_call

    def _drop_failed_handles(self, code: int, arguments: tuple[Device, ...]) -> None:
        """Drop cached state of a driver or device that failed; it may return as a different one.

        An invalid-argument error refers to the device, such as a removed MIG device, only if the
        device is the sole argument.
        """
        if code in _RESTART_CODES:
            self.close()
        elif code in _DEVICE_GONE or (code == _INVALID_ARGUMENT and len(arguments) == 1):
            for device in arguments[:1]:
                self._drop(device)

    # Devices -----------------------------------------------------------------------------------

    def _handle(self, module: ModuleType, device: Device) -> Any:
        handle = self._handles.get(device)
        if handle is None:
            if isinstance(device, str):
                raise NvmlError(_NOT_FOUND, f"unknown MIG device {device}")
            handle = self._handles[device] = module.nvmlDeviceGetHandleByIndex(device)
            if not self._events.is_following(handle):
                self._events.close()  # to reopen it with this GPU among the others
        return handle

    def _drop(self, device: Device) -> None:
        if self._handles.pop(device, None):
            # All of them: a call holds the handle, and calls are not sorted by device. They are bound again
            # at no cost of the driver.
            self._bound_calls.clear()
        if monitor := self._monitors.pop(device, None):
            monitor.close()

    def _mig_mode(self, module: ModuleType, gpu: int) -> Json:
        mode = to_plain(module.nvmlDeviceGetMigMode(self._handle(module, gpu)))
        # No MIG device exists in this mode: their handles are invalid.
        if not mode[0]:
            self._drop_mig(gpu, ())
        return mode

    def _mig_devices(self, module: ModuleType, gpu: int) -> Json:
        """MIG devices of a GPU: UUID, with the GPU instance and compute instance of each.

        Memory slices of the GPU instance are readable only with the right to configure MIG.
        """
        parent = self._handle(module, gpu)
        devices: dict[str, Json] = {}
        max_devices = module.nvmlDeviceGetMaxMigDeviceCount(parent)
        for index in range(max_devices):
            try:
                handle = module.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except module.NVMLError as error:
                if error.value == _NOT_FOUND:
                    continue  # gap between the existing devices
                raise
            uuid = to_plain(module.nvmlDeviceGetUUID(handle))
            instance = module.nvmlDeviceGetGpuInstanceId(handle)
            part = module.nvmlDeviceGetComputeInstanceId(handle)
            if not self._is_same(uuid, handle, (gpu, instance)):
                self._drop(uuid)
            self._handles[uuid], self._mig[uuid] = handle, (gpu, instance)
            identity = {
                "uuid": uuid,
                "index": index,
                "gpu": instance,
                "compute": part,
                "most": max_devices,
            }
            devices[uuid] = identity | _placement(module, parent, instance)
        self._drop_mig(gpu, devices)
        return list(devices.values())

    def _is_same(self, uuid: str, handle: Any, place: tuple[int, int]) -> bool:
        existing = self._handles.get(uuid)
        # Another handle or place is another device, whose samples must not be compared with those of the
        # former one.
        same = existing is not None and device_address(existing) == device_address(handle)
        return same and self._mig.get(uuid) == place

    def _drop_mig(self, gpu: int, current: Collection[str]) -> None:
        """Drop the MIG devices of a GPU that no longer exist."""
        for uuid in [u for u, (owner, _) in self._mig.items() if owner == gpu and u not in current]:
            self._drop(uuid)
            del self._mig[uuid]

    def _reset(self) -> None:
        """Drop all state of the previous driver; event numbers continue."""
        self._handles: dict[Device, Any] = {}
        self._mig: dict[str, tuple[int, int]] = {}
        self._bound_calls: dict[tuple[str, tuple[Device, ...]], Callable[[], Json]] = {}
        self._monitors: dict[Device, GpmMonitor] = {}
        self._stamps: dict[tuple[str, int], int] = {}

    # Calls with their own implementation -------------------------------------------------------

    def _activity(self, module: ModuleType, device: Device, *metrics: int) -> Json:
        monitor = self._monitors.get(device)
        if monitor is None:
            gpu, instance = self._mig.get(str(device), (device, None))
            handle = self._handle(module, gpu)
            monitor = GpmMonitor(module, handle, instance, self._monotonic_ns)
            self._monitors[device] = monitor
        return monitor.read(metrics)

    def _wait(self, module: ModuleType) -> Json:
        if not self._events.is_open:
            for index in range(module.nvmlDeviceGetCount()):
                with suppress(module.NVMLError):  # a lost GPU has no events
                    self._handle(module, index)
            gpus = {gpu: h for gpu, h in self._handles.items() if isinstance(gpu, int)}
            self._events.open(module, gpus)
        return self._events.take()

    def _take_samples(self, module: ModuleType, gpu: int, kind: int) -> Json:
        """Samples of one kind that the driver has buffered since the last call."""
        key = f"samples {kind}", gpu
        handle, stamp = self._handle(module, gpu), self._stamps.get(key, _NO_STAMP)
        try:
            value_type, samples = module.nvmlDeviceGetSamples(handle, kind, stamp)
        except module.NVMLError as error:
            if error.value == _NOT_FOUND:  # none since then, or the clock was set back
                # Without a time stamp the next call returns all samples: after a step of the clock, none
                # would ever be newer.
                self._stamps.pop(key, None)
                return []
            raise
        member = _SAMPLE_MEMBERS.get(value_type)
        if member is None:
            raise NvmlError(_UNKNOWN, f"unknown sample type {value_type}")
        buffered = [[int(s.timeStamp), int(getattr(s.sampleValue, member))] for s in samples]
        # The newest one counts, whatever the order of the samples.
        self._stamps[key] = max([stamp, *(taken for taken, _ in buffered)])
        return buffered

    def _since_last(self, function: str, module: ModuleType, gpu: int) -> Json:
        """Samples newer than the last one: without its time the driver returns an average of all."""
        handle, stamp = self._handle(module, gpu), self._stamps.get((function, gpu), _NO_STAMP)
        try:
            samples = to_plain(getattr(module, function)(handle, stamp))
        except module.NVMLError as error:
            if error.value == _SUCCESS:  # pynvml raises this too if there is no sample
                return []
            raise
        self._stamps[function, gpu] = max([stamp, *(sample["timeStamp"] for sample in samples)])
        return samples

    def _memory(
        self, module: ModuleType, target: Any, handle: Any, key: tuple[str, tuple[Device, ...]]
    ) -> Json:
        """Memory usage: version 2 separates reserved from used; older drivers have version 1 only."""
        try:
            return to_plain(target(handle, module.nvmlMemory_v2))
        except module.NVMLError as error:
            if error.value not in {_FUNCTION_NOT_FOUND, _ARGUMENT_VERSION}:
                raise
        # The driver has no version 2: later calls do not try it again.
        bound_call = self._bound_calls[key] = partial(_plain_result, target, handle)
        return bound_call()

    def _vgpu_memory(self, module: ModuleType, instance: int) -> Json:
        """Memory usage of a vGPU in bytes: 64 bits in nvml.h, but pynvml reserves 32."""
        size = ctypes.c_ulonglong()
        function = module._nvmlGetFunctionPointer("nvmlVgpuInstanceGetFbUsage")  # noqa: SLF001 - see above
        code = function(ctypes.c_uint(instance), ctypes.byref(size))
        if code:
            raise module.NVMLError(code)
        return size.value


def _placement(module: ModuleType, gpu: Any, instance: int) -> Json:
    try:
        handle = module.nvmlDeviceGetGpuInstanceById(gpu, instance)
        place = module.nvmlGpuInstanceGetInfo(handle).placement
    except module.NVMLError as error:
        if error.value in _DEVICE_GONE:
            raise
        return {}
    return {"start": int(place.start), "size": int(place.size)}


def _plain_result(target: Callable[..., Any], *arguments: Any) -> Json:
    return to_plain(target(*arguments))


def _filled_structure(module: ModuleType, target: Any, handle: Any, function: str) -> Json:
    """A structure of the newest version that both pynvml and the driver support."""
    for structure, version in _VERSIONED_STRUCTURES[function]:
        # An older release of pynvml.
        if not hasattr(module, structure):
            continue
        space = getattr(module, structure)()
        if version:
            space.version = getattr(module, version)
        try:
            target(handle, ctypes.byref(space))
        except module.NVMLError as error:
            if error.value != _ARGUMENT_VERSION:
                raise
        else:
            return to_plain(space)
    raise NvmlError(_ARGUMENT_VERSION, function)
