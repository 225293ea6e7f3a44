"""NVML results of the simulated GPUs.

settings   identity, limits, modes, BAR1
load       rapidly changing values, GPM metrics
health     errors, repairs, NVLinks
sharing    processes, MIG, virtual GPUs
results    calls, fields and events, as recorded
"""

from __future__ import annotations

from railscope.capture import PENDING, CaptureMoment, Json
from railscope.timestamps import MICROSECOND_NS
from simulator import node_model, spec
from simulator.gpu import GpuState
from simulator.nvml import health, load, results, settings, sharing

LINKS_PERIOD_NS = spec.seconds_to_ns(10.0)
"""Period of per-link values, equal to the agents' period: there are many of them."""

_DENIED = (results.GPM, "nvml.nvmlDeviceGetSramEccErrorStatus")


class SimulatedNvml:
    """NVML on the simulated node."""

    def __init__(self, model: node_model.NodeModel) -> None:
        self._events = results.NvmlEventLog()
        self._links: list[dict[str, Json]] = [{} for _ in model.gpus]
        self._links_shown_ns: int | None = None

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Add all results to a `CaptureMoment`. For a lost GPU every call returns the error GPU_IS_LOST."""
        parts = model.machine
        into.calls["nvml.nvmlDeviceGetCount()"] = len(model.gpus)
        into.calls["nvml.nvmlSystemGetDriverVersion()"] = parts.model.driver
        into.calls["nvml.nvmlSystemGetCudaDriverVersion()"] = settings.CUDA_VERSIONS[
            parts.model.driver_branch
        ]
        confidential = settings.confidential_computing(parts.model)
        into.calls["nvml.nvmlSystemGetConfComputeState()"] = confidential
        self._refresh_links(model)
        for gpu, of_links in zip(model.gpus, self._links, strict=True):
            into.calls |= _as_it_answers(gpu, _answers(model, gpu) | of_links)
            sharing.show_files(gpu, into)
        self._events.show(model, into)

    def _refresh_links(self, model: node_model.NodeModel) -> None:
        last_ns, now_ns = self._links_shown_ns, model.offset_ns
        if last_ns is not None and now_ns // LINKS_PERIOD_NS == last_ns // LINKS_PERIOD_NS:
            return
        self._links_shown_ns = now_ns
        for place, gpu in enumerate(model.gpus):
            into = results.NvmlResults(gpu.identity.index)
            health.add_links(model.machine, gpu, into)
            self._links[place] = into.found


def _answers(model: node_model.NodeModel, gpu: GpuState) -> dict[str, Json]:
    into = results.NvmlResults(gpu.identity.index)
    settings.add_identity(model.spec, gpu, into)
    load.add_load(gpu, into)
    health.add_health(gpu, into)
    settings.add_settings(gpu, into)
    load.add_gpm_metrics(gpu, into)
    sharing.add_tenants(gpu, (model.spec.started_wall_ns + model.offset_ns) // MICROSECOND_NS, into)
    found = into.found
    for device in gpu.sharing.mig_devices:
        found |= sharing.instance_results(gpu, device).found
    return found


def _as_it_answers(gpu: GpuState, answers: dict[str, Json]) -> dict[str, Json]:
    """Return the results as the caller receives them: the GPU may be lost, hung, stuck or denied."""
    if gpu.lost:
        return dict.fromkeys(answers, results.GPU_IS_LOST)
    if gpu.hung:
        return dict.fromkeys(answers, results.TIMEOUT)
    if gpu.stuck:
        return dict.fromkeys(answers, PENDING)
    if gpu.denied:
        denied_calls = [call for call in answers if call.startswith(_DENIED)]
        return answers | dict.fromkeys(denied_calls, results.NO_PERMISSION)
    return answers
