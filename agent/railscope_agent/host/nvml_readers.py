"""Stateful readers of NVML: the event queue, batches of fields, GPM samples; and plain results.

Results of nvidia-ml-py are converted to plain numbers, strings, lists and dictionaries. Sources of
structures: nvml.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from railscope.capture import Json

_PLAIN = (int, str, float, type(None))


def to_plain(value: Any) -> Json:
    """Convert structures to dictionaries of their members, and unions to the number in their bytes.

    Each byte becomes one character: members of nvml.h that are one byte, or raw bytes like the GUID
    in nvmlPlatformInfo_t, are `char` in pynvml.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, ctypes.Structure):
        return {field[0]: to_plain(_member(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Union):
        return int.from_bytes(bytes(value), "little")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list | tuple | ctypes.Array):
        return [to_plain(item) for item in value]
    return {name: to_plain(item) for name, item in vars(value).items()}  # pynvml's friendly objects


_member = ctypes.Structure.__getattribute__
"""pynvml's own accessor would decode bytes as UTF-8, and fail on a GUID."""


def device_address(handle: Any) -> int | None:
    """Identity of a handle: the driver's address of the device."""
    return ctypes.cast(handle, ctypes.c_void_p).value


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
            event = module.nvmlEventSetWait_v2(self._set, 0)
            self._event_count += 1
            index = self._index.get(device_address(event.device), -1)
            instances = event.gpuInstanceId, event.computeInstanceId
            self._latest.append(
                [self._event_count, index, event.eventType, event.eventData, *instances]
            )


_STRIDE = 5
"""Size of nvmlFieldValue_t, in units of eight bytes."""
_HEAD, _VALUE = 3, 4
_TYPE_BITS = 32
_TYPE_MASK = (1 << _TYPE_BITS) - 1


def _double(value: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", value))[0])


def _signed(bits: int) -> Callable[[int], int]:
    half, whole = 1 << bits - 1, 1 << bits

    def decode(value: int) -> int:
        low = value & whole - 1
        return low - whole if low >= half else low

    return decode


# nvmlValueType_t: member of the union that holds the value. Types not listed are all 64 bits.
_DECODERS: dict[int, Callable[[int], int | float]] = {
    0: _double,
    1: lambda value: value & 0xFFFF_FFFF,
    4: _signed(64),
    5: _signed(32),
    6: lambda value: value & 0xFFFF,
}
_UNSIGNED, _UNSIGNED_FIELDS = 1, {82}
"""MEMORY_TEMP: some drivers mislabel its type (NVIDIA/DCGM)."""


class FieldBatch:
    """Fields of one GPU, each a number or "number:scope", and the array they are read into.

    All are read in one call, and decoded from the driver's array without a loop of ctypes. nvml.h,
    nvmlFieldValue_t: field and scope (4 bytes each), time stamp and latency (8 each), value type and
    return code (4 each), the value (8).
    """

    def __init__(self, module: ModuleType, gpu: Any, entries: Sequence[int | str]) -> None:
        self._module = module
        self._gpu = gpu
        self._array = (module.c_nvmlFieldValue_t * len(entries))()
        fields = []
        for slot, entry in zip(self._array, entries, strict=True):
            field, _, scope = str(entry).partition(":")
            slot.fieldId, slot.scopeId = int(field), int(scope or 0)
            fields.append(int(field))
        self._reference = ctypes.byref(self._array)
        self._integers = memoryview(self._array).cast("B").cast("Q")
        self._forced = [i for i, field in enumerate(fields) if field in _UNSIGNED_FIELDS]
        self._heads: list[int] = []
        self._codes: list[int] = []
        self._decoders: list[tuple[int, Callable[[int], int | float]]] = []

    def get(self) -> Json:
        """Two lists: a value for each field, and its return code. Raises NVMLError for the call."""
        function = self._module._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")  # noqa: SLF001 - pynvml's own call would allocate a new array
        code = function(self._gpu, len(self._array), self._reference)
        if code:
            raise self._module.NVMLError(code)
        heads = self._integers[_HEAD::_STRIDE].tolist()
        if heads != self._heads:
            self._decode(heads)
        raw: list[int] = self._integers[_VALUE::_STRIDE].tolist()
        values: list[int | float] = [*raw]
        for position, decode in self._decoders:
            values[position] = decode(raw[position])
        return [values, self._codes]

    def _decode(self, heads: list[int]) -> None:
        """Cache type and code of each value: both usually stay the same between reads."""
        self._heads = heads
        self._codes = [head >> _TYPE_BITS for head in heads]
        types = [head & _TYPE_MASK for head in heads]
        for position in self._forced:
            types[position] = _UNSIGNED
        self._decoders = [(i, _DECODERS[kind]) for i, kind in enumerate(types) if kind in _DECODERS]
        for position, code in enumerate(self._codes):
            if code:
                self._decoders.append((position, lambda _: 0))


SHORTEST_NS = 110_000_000
LONGEST_NS = 30_000_000_000
"""Maximum age of the previous sample: an average over a longer time does not describe the present."""

_GPM_UNSUPPORTED, _NOT_READY = 3, 27
_HEADER_UNITS, _METRIC_UNITS = 3, 5
_CODE_BITS = 32


class GpmMonitor:
    """Two samples of one GPU or of one GPU instance, and the buffer for their metrics.

    Raises NVMLError NOT_SUPPORTED if the GPU has no GPM.

    GPM has the activity of SMs, pipes and links, from two samples of the hardware's counters (Hopper and
    later). nvml.h, nvmlGpmMetricsGet: the samples must be more than 100 ms apart. Each read takes one
    sample and compares it with the previous one.
    """

    def __init__(
        self, module: ModuleType, gpu: Any, instance: int | None, monotonic_ns: Callable[[], int]
    ) -> None:
        self._module = module
        self._monotonic_ns = monotonic_ns
        self._gpu = gpu
        self._instance = instance
        if not module.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise module.NVMLError(_GPM_UNSUPPORTED)
        self._spare = module.nvmlGpmSampleAlloc()
        self._latest = module.nvmlGpmSampleAlloc()
        self._taken_ns: int | None = None
        self._compared = False
        self._metrics: tuple[int, ...] = ()
        self._request = module.c_nvmlGpmMetricsGet_t(version=module.NVML_GPM_METRICS_GET_VERSION)
        view = memoryview(self._request).cast("B")
        self._integers, self._doubles = view.cast("Q"), view.cast("d")

    def close(self) -> None:
        """Free the samples; a driver that was unloaded rejects them."""
        for sample in (self._spare, self._latest):
            with suppress(self._module.NVMLError):
                self._module.nvmlGpmSampleFree(sample)

    def read(self, metrics: tuple[int, ...]) -> Json:
        """Two lists: a value for each metric, and its return code.

        A read right after another compares the same two samples. Raises NVMLError NOT_READY if
        there is no sample yet that is old enough to compare with, and errors of the driver, such as
        NO_PERMISSION.
        """
        now_ns = self._monotonic_ns()
        before_ns, module = self._taken_ns, self._module
        if before_ns is not None and now_ns - before_ns < SHORTEST_NS:
            if self._compared:
                return self._compare(metrics)
            raise module.NVMLError(_NOT_READY)
        self._taken_ns, self._compared = None, False
        self._sample(self._spare)
        self._spare, self._latest = self._latest, self._spare
        self._taken_ns = now_ns
        if before_ns is None or now_ns - before_ns > LONGEST_NS:
            raise module.NVMLError(_NOT_READY)
        self._compared = True
        return self._compare(metrics)

    def _sample(self, into: Any) -> None:
        if self._instance is None:
            self._module.nvmlGpmSampleGet(self._gpu, into)
        else:
            self._module.nvmlGpmMigSampleGet(self._gpu, self._instance, into)

    def _compare(self, metrics: tuple[int, ...]) -> Json:
        request = self._request
        request.sample1, request.sample2 = self._spare, self._latest
        end = _HEADER_UNITS + len(metrics) * _METRIC_UNITS
        if metrics != self._metrics:  # otherwise they are already in place
            self._metrics, request.numMetrics = metrics, len(metrics)
            places = range(_HEADER_UNITS, end, _METRIC_UNITS)
            for place, metric in zip(places, metrics, strict=True):
                self._integers[place] = metric
        self._module.nvmlGpmMetricsGet(request)
        heads: list[int] = self._integers[_HEADER_UNITS:end:_METRIC_UNITS].tolist()
        values: Any = self._doubles[_HEADER_UNITS + 1 : end : _METRIC_UNITS].tolist()
        codes = [head >> _CODE_BITS for head in heads]
        if any(codes):
            values = [0.0 if code else value for value, code in zip(values, codes, strict=True)]
        return [values, codes]
