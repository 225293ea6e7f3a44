"""The readings of a source by nvidia-ml-py as its examples show it: one call for every value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Asked = tuple[str, tuple[int | str, ...]]
Call = Callable[[], Any]

# nvml.h, nvmlValueType_t: the member of the union that holds the value.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_OURS = {"nvmlEventSetWait", "nvmlDeviceGetMigDevices"}
"""Not calls of NVML, or calls for which nothing is due."""
_FILLED = {
    "nvmlDeviceGetSramEccErrorStatus": "c_nvmlEccSramErrorStatus_v1_t",
    "nvmlDeviceGetGpuFabricInfoV": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlDeviceGetPlatformInfo": "c_nvmlPlatformInfo_v2_t",
}
_EXTRA: dict[str, Callable[[Any], list[Any]]] = {
    "nvmlDeviceGetMemoryInfo": lambda pynvml: [pynvml.nvmlMemory_v2],
    "nvmlDeviceGetProcessUtilization": lambda _: [0],
    "nvmlDeviceGetVgpuUtilization": lambda _: [0],
}
"""Arguments that the host adds by itself."""


_ALL_SAMPLES = 0
"""Timestamp of the last sample already read: none."""


def one_at_a_time(asked: Sequence[Asked]) -> Callable[[], int]:
    """Return a function that makes the calls of a source, batches split, and counts the answers."""
    import pynvml  # noqa: PLC0415 - the library is loaded by now

    handles: dict[int, Any] = {}
    calls: list[Call] = []
    for function, arguments in asked:
        if function in _OURS:
            continue
        if not function.startswith(("nvmlDevice", "nvmlGpm")) or not arguments:
            calls.append(partial(getattr(pynvml, function), *arguments))
            continue
        gpu, *rest = arguments
        if gpu not in handles:
            handles[int(gpu)] = pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
        calls += _of_gpu(pynvml, function, handles[int(gpu)], rest)

    def read() -> int:
        got = 0
        for call in calls:
            try:
                call()
            except pynvml.NVMLError:
                continue
            got += 1
        return got

    return read


def _of_gpu(pynvml: Any, function: str, handle: Any, rest: list[int | str]) -> list[Call]:
    if function == "nvmlDeviceGetFieldValues":
        return [partial(_field, pynvml, handle, entry) for entry in rest]
    if function == "nvmlGpmMetricsGet":
        samples = _Samples(pynvml, handle)
        return [samples.take, *(partial(samples.metric, int(metric)) for metric in rest)]
    target = getattr(pynvml, function)
    if function in _FILLED:
        return [partial(_filled, pynvml, target, handle, _FILLED[function])]
    extra = _EXTRA[function](pynvml) if function in _EXTRA else rest
    if function == "nvmlDeviceGetSamples":
        extra = [*rest, _ALL_SAMPLES]
    return [partial(target, handle, *extra)]


def _field(pynvml: Any, handle: Any, entry: int | str) -> Any:
    field, _, scope = str(entry).partition(":")
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(int(field), int(scope or 0))])
    return getattr(value.value, _MEMBERS[value.valueType])


def _filled(pynvml: Any, target: Any, handle: Any, structure: str) -> Any:
    space = getattr(pynvml, structure)()
    target(handle, ctypes.byref(space))
    return space


class _Samples:
    """Two samples of a GPU; each metric is a separate request."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._pynvml, self._handle = pynvml, handle
        self._before, self._latest = (
            pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc()) for _ in range(2)
        )

    def take(self) -> None:
        self._before, self._latest = self._latest, self._before
        self._pynvml.nvmlGpmSampleGet(self._handle, self._latest)

    def metric(self, number: int) -> float:
        request = self._pynvml.c_nvmlGpmMetricsGet_t(
            version=self._pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=1,
            sample1=self._before, sample2=self._latest,
        )  # fmt: skip
        request.metrics[0].metricId = number
        self._pynvml.nvmlGpmMetricsGet(request)
        return float(request.metrics[0].value)
