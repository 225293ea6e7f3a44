"""GPM metrics of a GPU or a GPU instance, between two samples of the driver. Source of structures: nvml.h."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from railscope.capture import Json

# With a margin above the 100 ms that nvml.h requires between two samples.
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
        # Until the sample is complete: if the call fails, the next read starts over instead of comparing with
        # half a sample.
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
