"""Shapes of answers: a source receives answers of the declared form, or a failed call.

A driver, a library or a replayed recording can answer with a member missing, null, or of another type.
`well_formed` removes such members, entries and devices from an answer, so that only the readings that
depend on them are absent. An answer without a usable rest is an error of the call, which every source
handles already. Calls that are not listed here are those whose readings are picked one by one
(agent/railscope_agent/sources/nvidia/call_plan.py) or decoded by their callers.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from railscope_agent.host import Json, NvmlError

# NVML_ERROR_UNKNOWN of nvml.h: every source treats it as an error of the call, not of its arguments.
_NVML_UNKNOWN = 999
# Frames store 64 bits: signed for gauges, unsigned for counters.
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1
# Bounds for answers of a faulty driver or a damaged recording; real answers are far below.
_MAX_ENTRIES = 4096
_MAX_TEXT = 4096
_UNUSABLE = re.compile(r"[\x00\ud800-\udfff]")
"""Zero bytes and lone surrogates. Other control characters are escaped where text leaves the agent."""
_PCI_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
# A cut address must not pass as the name on another bus: the NIC would have no PCI device, and lose its RDMA
# columns.
_PART_OF_PCI_ADDRESS = re.compile(r"[0-9A-Fa-f]{1,8}|[0-9A-Fa-f]{0,8}:[0-9A-Fa-f:.]*")
_INTERFACE = re.compile(r"[^\s/\x00-\x20\x7f\ud800-\udfff]{1,128}")
"""The kernel accepts no other names: net/core/dev.c, dev_valid_name; alternative names are longer."""
_MAX_DIGITS = 4000
_LONG_NUMBER = re.compile(rb"\d{%d}" % _MAX_DIGITS)
"""Maximum number of digits that Python converts: sys.int_info.default_max_str_digits."""
_MISSING = object()
_MAX_CACHED_NAMES = 64
"""Sets of names of answers: one for each call, except RDMA statistics and S.M.A.R.T. of several products."""

Shape = Callable[[Any], Json]
"""Return the well-formed part of an answer, or `_MISSING`: the answer itself where all of it is."""


def well_formed(host_interface: str, function: str, shape: Shape, answer: Json) -> Json:
    """Return the part of an answer that has the declared form. Raises OSError or NvmlError."""
    checked = shape(answer)
    return raise_malformed(host_interface, function) if checked is _MISSING else checked


def well_formed_file(path: str, content: bytes) -> bytes:
    """Return the content of a file if its numbers can be converted. Raises OSError."""
    if len(content) > _MAX_DIGITS and _LONG_NUMBER.search(content):
        raise OSError(errno.EIO, "malformed number in a file", path)
    return content


def checked_path(path: str) -> str:
    """Return a path that a file can have. Raises FileNotFoundError."""
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path


def raise_malformed(host_interface: str, function: str) -> NoReturn:
    """Fail a call with an unusable answer. Raises NvmlError or OSError."""
    problem = f"malformed answer of {host_interface}.{function}"
    if host_interface == "nvml":
        raise NvmlError(_NVML_UNKNOWN, problem)
    raise OSError(errno.EIO, problem)


def _number_between(low: int, high: int, types: Any = int) -> Shape:
    def shape(value: Any) -> Json:
        return value if isinstance(value, types) and low <= value <= high else _MISSING

    return shape


def _text(value: Any) -> Json:
    is_text = isinstance(value, str) and len(value) <= _MAX_TEXT and not _UNUSABLE.search(value)
    return value if is_text else _MISSING


def _pci_address(value: Any) -> Json:
    is_address = isinstance(value, str) and (not value or _PCI_ADDRESS.fullmatch(value))
    return value if is_address else _MISSING


def _bus_name(value: Any) -> Json:
    """A PCI address, or the name of a device on another bus such as virtio0 or usb-0000:00:14.0-1."""
    if _text(value) is _MISSING or _pci_address(value) is not _MISSING:
        return _text(value)
    return _MISSING if _PART_OF_PCI_ADDRESS.fullmatch(value) else value


def _interface(value: Any) -> Json:
    return value if isinstance(value, str) and _INTERFACE.fullmatch(value) else _MISSING


def _scalar(value: Any) -> Json:
    return _text(value) if isinstance(value, str) else _number(value)


def _byte_or_text(value: Any) -> Json:
    """A member of one byte is one character, which may be a control character."""
    is_byte = isinstance(value, str) and len(value) == 1
    return value if is_byte or isinstance(value, list) else _scalar(value)


def _number_or_lanes(value: Any) -> Json:
    """A total, or a list that begins with the total."""
    return _row(_number, 1)(value) if isinstance(value, list) else _number(value)


def _or_none(of: Shape) -> Shape:
    return lambda value: None if value is None else of(value)


def _record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """Members by name; a malformed optional one is removed, unlisted ones are not checked."""
    members = {**required, **(optional or {})}

    def shape(value: Any) -> Json:
        if not isinstance(value, dict) or not required.keys() <= value.keys():
            return _MISSING
        changed = {
            key: checked
            for key, of in members.items()
            if key in value and (checked := of(value[key])) is not value[key]
        }
        # An answer without a defect is returned as it is: a copy of every answer would cost more than the
        # check.
        if not changed:
            return value
        # Without a required member the record has no identity or no value: the caller drops it as a whole.
        if any(changed.get(key) is _MISSING for key in required):
            return _MISSING
        return {key: member for key, member in (value | changed).items() if member is not _MISSING}

    return shape


def _table(of: Shape) -> Shape:
    """Any number of members of one form, by names; malformed ones are removed."""

    def shape(value: Any) -> Json:
        if not isinstance(value, dict):
            return _MISSING
        changed = {
            key: checked
            for key, member in value.items()
            if (checked := of(member) if _text(key) is not _MISSING else _MISSING) is not member
        }
        if not changed:
            return value
        return {key: member for key, member in (value | changed).items() if member is not _MISSING}

    return shape


def _entries(of: Shape) -> Shape:
    """A list of one form; malformed entries are removed."""

    def shape(value: Any) -> Json:
        if not isinstance(value, list):
            return _MISSING
        return [entry for entry in map(of, value) if entry is not _MISSING]

    return shape


def _row(of: Shape, min_length: int, max_length: int = _MAX_ENTRIES) -> Shape:
    """Shape of a list with fixed positions: one malformed entry invalidates the list."""

    def shape(value: Any) -> Json:
        if not isinstance(value, list) or not min_length <= len(value) <= max_length:
            return _MISSING
        # Removing an entry would move those behind it to wrong positions.
        return value if all(of(entry) is not _MISSING for entry in value) else _MISSING

    return shape


def _statistics(value: Any) -> Json:
    """Parallel lists of names and values, read often: thousands of items are checked by functions in C."""
    if not isinstance(value, dict):
        return _MISSING
    names, values = value.get("names"), value.get("values")
    if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
        return _MISSING
    # Types are compared exactly: bool is a subclass of int, and true is no count.
    is_formed = set(map(type, names)) <= {str} and set(map(type, values)) <= {int}
    return value if is_formed else _MISSING


def _batch(value: Any) -> Json:
    """Values, picked one by one, and their codes."""
    if not isinstance(value, list) or len(value) != len(("values", "codes")):
        return _MISSING
    values, codes = value
    if not isinstance(values, list) or not isinstance(codes, list) or len(values) != len(codes):
        return _MISSING
    # A list of values that is longer than its codes would assign values to the wrong fields.
    return value if set(map(type, codes)) <= {int} else _MISSING


def _numbers(value: Any) -> Json:
    """Numbers by names, read often: well-formed ones are checked by functions in C."""
    if isinstance(value, dict) and set(map(type, value.values())) == {int}:
        is_in_range = min(value.values()) >= _LOWEST and max(value.values()) <= _HIGHEST
        # The names of a call hardly ever change, so their check is cached; the numbers are new in each
        # answer.
        if is_in_range and _are_names(tuple(value)):
            return value
    return _number_table(value)


@lru_cache(_MAX_CACHED_NAMES)
def _are_names(names: tuple[Any, ...]) -> bool:
    return all(_text(name) is not _MISSING for name in names)


_number = _number_between(_LOWEST, _HIGHEST)
_natural = _number_between(0, _HIGHEST)
_number_table = _table(_number)
_decimal = _number_between(_LOWEST, _HIGHEST, int | float)
_decimals = _table(_decimal)
_PROCESSES = _entries(
    _record(
        {"pid": _natural, "usedGpuMemory": _or_none(_natural)},
        {"gpuInstanceId": _or_none(_natural), "computeInstanceId": _or_none(_natural)},
    )
)
_COUNTED = _record({}, {"statistics": _table(_number_or_lanes)})
_PCI_INFO = _record({"busId": _pci_address})
_FABRIC = _record(
    {},
    {"clusterUuid": _row(_number_between(0, 255), 16, 16), "cliqueId": _natural}
    | dict.fromkeys(("state", "status", "healthMask", "healthSummary"), _natural),
)
_SAMPLE = dict.fromkeys(("timeStamp", "smUtil"), _natural)
_NVML_NUMBERS = (
    "DeviceGetArchitecture", "DeviceGetEnforcedPowerLimit", "DeviceGetMinorNumber",
    "DeviceGetModuleId", "DeviceGetNumFans", "DeviceGetNumaNodeId",
    "DeviceGetNvLinkRemoteDeviceType", "DeviceGetNvLinkState", "DeviceGetNvLinkVersion",
    "DeviceGetPerformanceState", "DeviceGetSupportedClocksEventReasons",
    "DeviceGetSupportedClocksThrottleReasons", "DeviceGetVirtualizationMode",
    "SystemGetCudaDriverVersion", "VgpuInstanceGetFbUsage",
)  # fmt: skip
_NVML_TEXTS = (
    "DeviceGetBoardPartNumber", "DeviceGetGspFirmwareVersion", "DeviceGetInforomImageVersion",
    "DeviceGetName", "DeviceGetSerial", "DeviceGetUUID", "DeviceGetVbiosVersion",
    "SystemGetDriverVersion", "VgpuInstanceGetUUID", "VgpuTypeGetName",
)  # fmt: skip
_NVML_PROCESSES = tuple(
    f"DeviceGet{context}RunningProcesses{version}"
    for context in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
)
SHAPES: Mapping[str, Shape] = {
    "ethtool.driver": _record(
        {"driver": _text}, {"version": _text, "firmware": _text, "bus": _bus_name}
    ),
    "ethtool.statistics": _statistics,
    "lldp.neighbours": _table(
        _table(lambda value: value if isinstance(value, list) else _scalar(value))
    ),
    "netlink.links": _entries(
        _record({"name": _interface}, dict.fromkeys(("carrier", "carrier_changes", "up"), _natural))
    ),
    "netlink.fec": _COUNTED,
    "netlink.pause": _COUNTED,
    "netlink.standard_statistics": _COUNTED,
    "netlink.rdma_statistics": _numbers,
    "nvme.smart": _numbers,
    "psutil.boot_time": _decimal,
    "psutil.cpu_count": _natural,
    "psutil.cpu_times": _decimals,
    "psutil.disk_io_counters": _table(_decimals),
    "psutil.net_io_counters": _table(_decimals),
    "psutil.swap_memory": _decimals,
    "psutil.virtual_memory": _decimals,
    "nvml.nvmlDeviceGetCount": _number_between(0, _MAX_ENTRIES),
    "nvml.nvmlDeviceGetActiveVgpus": _entries(_natural),
    "nvml.nvmlDeviceGetCudaComputeCapability": _row(_natural, 2, 2),
    "nvml.nvmlDeviceGetFieldValues": _batch,
    "nvml.nvmlDeviceGetGpuFabricInfo": _FABRIC,
    "nvml.nvmlDeviceGetGpuFabricInfoV": _FABRIC,
    "nvml.nvmlDeviceGetMemoryInfo": _numbers,
    "nvml.nvmlDeviceGetMigDevices": _entries(
        _record(
            {"uuid": _text, "gpu": _natural, "compute": _natural, "index": _natural},
            {"start": _natural, "size": _natural, "most": _natural},
        )
    ),
    "nvml.nvmlDeviceGetMigMode": _row(_natural, 1),
    "nvml.nvmlDeviceGetNvLinkRemotePciInfo": _PCI_INFO,
    "nvml.nvmlDeviceGetPciInfo": _PCI_INFO,
    "nvml.nvmlDeviceGetPlatformInfo": _table(_byte_or_text),
    "nvml.nvmlDeviceGetProcessUtilization": _entries(
        _record({"pid": _natural, "memUtil": _natural, **_SAMPLE})
    ),
    "nvml.nvmlDeviceGetSamples": _entries(_row(_natural, 2, 2)),
    "nvml.nvmlDeviceGetUtilizationRates": _record({"gpu": _natural}, {"memory": _natural}),
    "nvml.nvmlDeviceGetVgpuUtilization": _entries(_record({"vgpuInstance": _natural, **_SAMPLE})),
    "nvml.nvmlEventSetWait": _entries(_row(_natural, 6, 6)),
    "nvml.nvmlGpmMetricsGet": _batch,
    "nvml.nvmlVgpuInstanceGetType": _natural,
    **{f"nvml.nvml{name}": _natural for name in _NVML_NUMBERS},
    **{f"nvml.nvml{name}": _text for name in _NVML_TEXTS},
    **{f"nvml.nvml{name}": _PROCESSES for name in _NVML_PROCESSES},
}
