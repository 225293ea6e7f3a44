"""A capture's answers of NVML as the table of the stand-in.

Keys lose `nvml` and a version at the end of the function; answers become numbers in the order of
the members in nvml.h, and text. Values without a place in C are omitted: they are not supported
then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railscope.capture import failure
from railscope_agent.host import Json

ALL_EVENTS = 0xFFFF
_NOT_SUPPORTED, _LIBRARY_NOT_FOUND = 3, 12
_KEY = re.compile(r"nvml\.nvml(?P<function>\w+?)(?:_v\d)?\((?P<arguments>.*)\)")
_NO_INSTANCE, _NOT_AVAILABLE = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
# nvml.h, nvmlValueType_t.
DOUBLE, UINT, ULONG, ULLONG, LLONG, INT, USHORT = range(7)
_INTS = {193, 194, 195, 196}
_UINTS = {
    29, 30, 31, 82, 91, 94, 95, *range(142, 148), *range(164, 168), 170, 171, 172, *range(185, 191),
    192, 230,
}  # fmt: skip
_UINT_BITS = 32

SRAM = (
    "aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity",
    "volatileUncSecDed", "volatileCor", "aggregateUncBucketL2", "aggregateUncBucketSm",
    "aggregateUncBucketPcie", "aggregateUncBucketMcu", "aggregateUncBucketOther",
    "bThresholdExceeded",
)  # fmt: skip
_MEMBERS = {
    "DeviceGetUtilizationRates": ("gpu", "memory"),
    "DeviceGetMemoryInfo": ("total", "reserved", "free", "used"),
    "DeviceGetBAR1MemoryInfo": ("bar1Total", "bar1Free", "bar1Used"),
    "DeviceGetConfComputeProtectedMemoryUsage": ("total", "free", "used"),
    "DeviceGetRowRemapperHistogram": ("max", "high", "partial", "low", "none"),
    "DeviceGetSramEccErrorStatus": SRAM,
    "DeviceGetC2cModeInfoV": ("isC2cEnabled",),
    "SystemGetConfComputeState": ("environment", "ccFeature", "devToolsMode"),
    "DeviceGetAttributes": (
        "multiprocessorCount", "sharedCopyEngineCount", "sharedDecoderCount", "sharedEncoderCount",
        "sharedJpegCount", "sharedOfaCount", "gpuInstanceSliceCount", "computeInstanceSliceCount",
        "memorySizeMB",
    ),
}  # fmt: skip
_PCI = ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId")
_SAMPLES = {"DeviceGetProcessUtilization": "pid", "DeviceGetVgpuUtilization": "vgpuInstance"}
_SEPARATELY_ANSWERED = {"DeviceGetMigDevices", "EventSetWait"}


@dataclass(frozen=True, slots=True)
class _CallAnswer:
    """One answer of a capture, with its function and arguments."""

    function: str
    arguments: str
    answer: Json

    @property
    def code(self) -> int | None:
        """Return the return code of a failure; None for an answer."""
        if isinstance(self.answer, dict) and set(self.answer) == {"error"}:
            kind, code = self.answer["error"]
            return int(code) if kind == "nvml" else _NOT_SUPPORTED
        return None


def error(code: int) -> Json:
    """Return a failure of NVML as in a capture."""
    return {"error": ["nvml", code]}


def table(calls: Mapping[str, Any], later_us: int = 0) -> str:
    """Return the text of the table; `later_us` is added to the timestamps of samples.

    An answer is one as in a capture, or an exception in its place.
    """
    reported = [one for key, answer in calls.items() if (one := _parsed(key, answer))]
    lines = dict(_derived(reported))
    for one in reported:
        if one.function not in _SEPARATELY_ANSWERED:
            lines |= [_line(one, later_us)]
    listed = [*_mig_lines(reported), *_event_lines(reported)]
    return "".join(f"{line}\n" for line in [*listed, *(f"{k}\t{v}" for k, v in lines.items())])


def _parsed(key: str, answer: Any) -> _CallAnswer | None:
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    stored = failure(answer) if isinstance(answer, Exception) else answer
    return _CallAnswer(match["function"], match["arguments"], stored)


def _line(reported: _CallAnswer, later_us: int) -> tuple[str, str]:
    if reported.function in _BATCHES:
        arguments = re.sub(r":0$", "", reported.arguments)
        return f"{reported.function}({arguments})", _BATCHES[reported.function](reported)
    key = f"{reported.function}({reported.arguments})"
    if reported.code is not None:
        return key, str(reported.code)
    if reported.function == "DeviceGetSamples":
        return key, f"0\t{_numbers(number for pair in reported.answer for number in pair)}"
    if reported.function in _SAMPLES:
        return key, f"0\t{_samples(reported, later_us)}"
    encode = _ENCODERS.get(reported.function)
    return key, f"0\t{encode(reported.answer) if encode else _encoded(reported)}"


# Batches -----------------------------------------------------------------------------------------


def _entry(answer: Json) -> list[Json]:
    """Return code and value, and the value's type if a test requires a specific one."""
    return answer if isinstance(answer, list) else [0, answer]


def _field(reported: _CallAnswer) -> str:
    if reported.code is not None:
        return f"!{reported.code}"
    code, value, *wanted = _entry(reported.answer)
    if code:
        return str(code)
    number = int(reported.arguments.rpartition(",")[2].partition(":")[0])
    (kind,) = wanted or [_value_type(number, value)]
    return f"0\t{kind} {value!r}"


def _value_type(field: int, value: Json) -> int:
    """Return the driver's type of a field; a wider one if the value needs it."""
    if isinstance(value, float):
        return DOUBLE
    if field in _INTS:
        return INT
    if value < 0:
        return LLONG
    return UINT if field in _UINTS and value.bit_length() <= _UINT_BITS else ULLONG


def _metric(reported: _CallAnswer) -> str:
    if reported.code is not None:
        return f"!{reported.code}"
    code, value = _entry(reported.answer)
    return str(code) if code else f"0\t{float(value)!r}"


_BATCHES: dict[str, Callable[[_CallAnswer], str]] = {
    "DeviceGetFieldValues": _field,
    "GpmMetricsGet": _metric,
}


# Structures and lists ----------------------------------------------------------------------------


def _encoded(reported: _CallAnswer) -> str:
    answer = reported.answer
    if isinstance(answer, str):
        return f'"{answer}'
    if isinstance(answer, dict):
        return _numbers(answer.get(name, 0) for name in _MEMBERS[reported.function])
    return _numbers(answer if isinstance(answer, list) else [answer])


def _numbers(values: Iterable[Any]) -> str:
    return " ".join(str(int(value)) for value in values)


def _pci(answer: Json) -> str:
    return f'{_numbers(answer.get(name, 0) for name in _PCI)} "{answer["busId"]}'


def _fabric(answer: Json) -> str:
    newest = "healthSummary" in answer
    names = ["status", "cliqueId", "state", "healthMask", *(["healthSummary"] if newest else [])]
    cluster = answer.get("clusterUuid", [0] * 16)
    return _numbers([3 if newest else 2, *cluster, *(answer.get(name, 0) for name in names)])


def _platform(answer: Json) -> str:
    newest = "chassisSerialNumber" in answer or "slotNumber" in answer
    names = (
        ("slotNumber", "trayIndex", "hostId", "peerType", "moduleId")
        if newest
        else ("chassisPhysicalSlotNumber", "computeSlotIndex", "nodeIndex", "peerType", "moduleId")
    )
    guid = _bytes(answer.get("ibGuid", ""), 16)
    places = [_bytes(answer.get(name, 0), 1)[0] for name in names]
    text = answer.get("chassisSerialNumber" if newest else "rackGuid", "")
    return f'{_numbers([2 if newest else 1, *guid, *places])} "{text}'


def _bytes(value: str | int, length: int) -> bytes:
    reported = bytes([value]) if isinstance(value, int) else value.encode("latin-1")
    return reported.ljust(length, b"\0")


def _processes(answer: Json) -> str:
    return _numbers(
        number
        for process in answer
        for number in (
            process["pid"],
            _NOT_AVAILABLE if process["usedGpuMemory"] is None else process["usedGpuMemory"],
            _instance(process.get("gpuInstanceId")),
            _instance(process.get("computeInstanceId")),
        )
    )


def _instance(number: int | None) -> int:
    return _NO_INSTANCE if number is None else number


def _virtual_machine(answer: Json) -> str:
    name, kind = answer
    return f'{kind} "{name}'


_ENCODERS: dict[str, Callable[[Json], str]] = {
    "DeviceGetPciInfo": _pci,
    "DeviceGetNvLinkRemotePciInfo": _pci,
    "DeviceGetGpuFabricInfo": _fabric,
    "DeviceGetGpuFabricInfoV": _fabric,
    "DeviceGetPlatformInfo": _platform,
    "DeviceGetComputeRunningProcesses": _processes,
    "DeviceGetGraphicsRunningProcesses": _processes,
    "DeviceGetMPSComputeRunningProcesses": _processes,
    "VgpuInstanceGetVmID": _virtual_machine,
}


def _samples(reported: _CallAnswer, later_us: int) -> str:
    """Return utilization samples with shifted timestamps: a driver returns none twice."""
    return _numbers(
        number
        for sample in reported.answer
        for number in (
            sample[_SAMPLES[reported.function]],
            sample["timeStamp"] + later_us,
            *(sample.get(use, 0) for use in ("smUtil", "memUtil", "encUtil", "decUtil")),
        )
    )


# Answers through other calls than the agent's ----------------------------------------------------


def _derived(reported: Sequence[_CallAnswer]) -> Iterator[tuple[str, str]]:
    count = [one for one in reported if one.function == "DeviceGetCount"]
    if not count:
        yield "DeviceGetCount()", str(_LIBRARY_NOT_FOUND)
    for one in reported:
        if one.function == "DeviceGetMigMode":
            yield f"DeviceGetMaxMigDeviceCount({one.arguments})", "0\t0"
    for one in reported:
        if one.function == "DeviceGetMigDevices":
            places = [device["index"] + 1 for device in one.answer] if one.code is None else []
            places += [device.get("most", 0) for device in one.answer] if one.code is None else []
            line = f"0\t{max(places, default=0)}" if one.code is None else str(one.code)
            yield f"DeviceGetMaxMigDeviceCount({one.arguments})", line
            for device in one.answer if one.code is None else ():
                if "start" in device:
                    key = f"GpuInstancePlacement({one.arguments},{device['gpu']})"
                    yield key, f"0\t{_numbers([device['start'], device['size']])}"
        if one.function == "EventSetWait" and one.code is None:
            for gpu in range(count[0].answer):
                yield f"DeviceGetSupportedEventTypes({gpu})", f"0\t{ALL_EVENTS}"
    yield from _gpm_support(reported)


def _gpm_support(reported: Sequence[_CallAnswer]) -> Iterator[tuple[str, str]]:
    """A GPU has GPM if it or one of its MIG devices has; a failure is that of taking a sample."""
    owners = {device["uuid"]: gpu for gpu, device in _mig_devices(reported)}
    codes: dict[str, set[int | None]] = {}
    for one in reported:
        if one.function == "GpmMetricsGet":
            codes.setdefault(one.arguments.partition(",")[0], set()).add(one.code)
    for device, failures in codes.items():
        if failures != {_NOT_SUPPORTED}:
            yield f"GpmQueryDeviceSupport({owners.get(device, device)})", "0\t1"
        (code, *others) = failures
        if code is not None and not others and code != _NOT_SUPPORTED:
            function = "GpmMigSampleGet" if device in owners else "GpmSampleGet"
            yield f"{function}({device})", str(code)


def _mig_devices(reported: Sequence[_CallAnswer]) -> Iterator[tuple[str, Json]]:
    for one in reported:
        if one.function == "DeviceGetMigDevices" and one.code is None:
            for device in one.answer:
                yield one.arguments, device


def _mig_lines(reported: Sequence[_CallAnswer]) -> Iterator[str]:
    for gpu, device in _mig_devices(reported):
        place = _numbers([gpu, device["index"], device["gpu"], device["compute"]])
        yield f'mig\t0\t{place} "{device["uuid"]}'


def _event_lines(reported: Sequence[_CallAnswer]) -> Iterator[str]:
    for one in reported:
        if one.function == "EventSetWait" and one.code is None:
            for _number, *event in one.answer:
                yield f"event\t0\t{_numbers(event)}"
