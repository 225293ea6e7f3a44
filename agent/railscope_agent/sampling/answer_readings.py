"""Readings in the answers of calls and files, and the absence reasons of calls that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from railscope.reading import Absent, Reading, parse_integer, reason_of
from railscope_agent.host import NvmlError

MALFORMED_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError)
"""Errors raised when a reading is extracted from an answer of an unexpected form."""
Answer = TypeVar("Answer")


def pick_reading(pick: Callable[[Answer], Reading], answer: Answer) -> Reading:
    """Return the reading in an answer; an unexpected form results in `Absent.ERROR`."""
    try:
        return pick(answer)
    except MALFORMED_ERRORS:
        return Absent.ERROR


def parsed_reading(
    read: Callable[[str], bytes], path: str, parse: Callable[[bytes], Reading] = parse_integer
) -> Reading:
    """Return the reading in the content of a file, or the reason why it cannot be read."""
    try:
        return parse(read(path))
    except OSError as error:
        return reason_of(error)


def content_reading(
    content: bytes | Absent, parse: Callable[[bytes], Reading] = parse_integer
) -> Reading:
    """Return the reading in one of `FileGroup.texts`."""
    return content if isinstance(content, Absent) else parse(content)


# NVML return codes: nvml.h, nvmlReturn_t. Any other code is an error: UNINITIALIZED (1), DRIVER_NOT_LOADED (9),
# LIBRARY_NOT_FOUND (12) and LIB_RM_VERSION_MISMATCH (18) are failures of NVML itself, not
# of the device, and UNKNOWN (999) is the driver's answer if it has no better one.
_NVML_REASONS = {
    2: Absent.GONE,  # INVALID_ARGUMENT: the device vanished
    3: Absent.UNSUPPORTED,  # NOT_SUPPORTED
    4: Absent.DENIED,  # NO_PERMISSION
    6: Absent.UNSUPPORTED,  # NOT_FOUND
    10: Absent.TIMEOUT,  # TIMEOUT
    27: Absent.NOT_DUE,  # NOT_READY
    13: Absent.UNSUPPORTED,  # FUNCTION_NOT_FOUND
    15: Absent.GONE,  # GPU_IS_LOST
    16: Absent.RESET_REQUIRED,  # RESET_REQUIRED
    21: Absent.UNSUPPORTED,  # NO_DATA
    22: Absent.UNSUPPORTED,  # VGPU_ECC_NOT_SUPPORTED
    25: Absent.UNSUPPORTED,  # ARGUMENT_VERSION_MISMATCH
    26: Absent.UNSUPPORTED,  # DEPRECATED
    28: Absent.GONE,  # GPU_NOT_FOUND
}


def nvml_reason(code: int) -> Absent:
    """Return the absence reason of an NVML return code."""
    # A code of a newer driver is an error, not unsupported: only failures are counted and cause a new probe.
    return _NVML_REASONS.get(code, Absent.ERROR)


def reason_for(error: OSError | NvmlError) -> Absent:
    """Return the absence reason of a failed call."""
    return nvml_reason(error.code) if isinstance(error, NvmlError) else reason_of(error)


_NVML_REMEDIES = {
    4: "run the agent as root, or grant it access to /dev/nvidia*",
    9: "load the nvidia kernel module: modprobe nvidia, then nvidia-smi",
    18: "the driver was updated without a reload: reload it, or reboot the node",
}


def nvml_remedy(code: int) -> str:
    """Return the remedy for an NVML return code that prevents reading all GPUs."""
    return _NVML_REMEDIES.get(code, "run nvidia-smi and read the kernel log")
