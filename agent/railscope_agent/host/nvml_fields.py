"""Batches of NVML fields, read into one array. Source of structures: nvml.h."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from railscope.capture import Json

_STRIDE = 5
"""Size of nvmlFieldValue_t, in units of eight bytes."""
_HEAD, _VALUE = 3, 4
_TYPE_BITS = 32
_TYPE_MASK = (1 << _TYPE_BITS) - 1
_UNSIGNED, _UNSIGNED_FIELDS = 1, {82}
"""MEMORY_TEMP: some drivers mislabel its type (NVIDIA/DCGM)."""


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


class FieldBatch:
    """Fields of one GPU, each a number or "number:scope", and the array they are read into.

    All are read in one call, and decoded from the driver's array without a loop of ctypes. nvml.h,
    nvmlFieldValue_t: field and scope (4 bytes each), time stamp and latency (8 each), value type and
    return code (4 each), the value (8).
    """

    def __init__(self, module: ModuleType, gpu: Any, entries: Sequence[int | str]) -> None:
        self._module = module
        self._gpu = gpu
        # Allocated once: field and scope stay in place, and the driver writes only the rest.
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
                # The value of a field that failed is not defined.
                self._decoders.append((position, lambda _: 0))
