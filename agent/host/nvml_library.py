"""Loading and unloading of the NVML library in this process.

pynvml is imported at the first start, so that a node without GPUs has no cost.
"""

from __future__ import annotations

from _ctypes import dlclose
from types import ModuleType
from typing import Any

from railscope.capture import NvmlError

_VERSION_MISMATCH = 18


def start() -> ModuleType:
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
