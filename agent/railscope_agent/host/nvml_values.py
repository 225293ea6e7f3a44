"""Results of nvidia-ml-py as plain numbers, strings, lists and dictionaries. Source of structures: nvml.h."""

from __future__ import annotations

import ctypes
from typing import Any

from railscope.capture import Json

_PLAIN = (int, str, float, type(None))

_member = ctypes.Structure.__getattribute__
"""pynvml's own accessor would decode bytes as UTF-8, and fail on a GUID."""


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
        # Every byte is a character in Latin-1: the conversion never fails and can be undone.
        return value.decode("latin-1")
    if isinstance(value, list | tuple | ctypes.Array):
        return [to_plain(item) for item in value]
    return {name: to_plain(item) for name, item in vars(value).items()}  # pynvml's friendly objects


def device_address(handle: Any) -> int | None:
    """Identity of a handle: the driver's address of the device."""
    return ctypes.cast(handle, ctypes.c_void_p).value
