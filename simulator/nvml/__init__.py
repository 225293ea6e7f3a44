"""NVML results of the simulated GPUs.

identity, load, health, settings     tables of calls and fields of a GPU
activity   SMs, pipes and links (GPM)        links    each NVLink
sharing    processes, MIG, virtual GPUs      events   events from the driver
"""

from __future__ import annotations

from railscope.capture import PENDING, Json, Moment
from simulator.gpu import GpuState
from simulator.model import NodeModel
from simulator.nvml import activity, health, identity, links, load, settings, sharing
from simulator.nvml.answers import GPM, GPU_IS_LOST, NO_PERMISSION, TIMEOUT, Answers
from simulator.nvml.events import Events
from simulator.span import NS_PER_US, seconds

LINKS_PERIOD_NS = seconds(10.0)
"""Period of per-link values, equal to the agents' period: there are many of them."""

_DENIED = (GPM, "nvml.nvmlDeviceGetSramEccErrorStatus")


class Nvml:
    """NVML on the simulated node."""

    def __init__(self, model: NodeModel) -> None:
        self._events = Events()
        self._links: list[dict[str, Json]] = [{} for _ in model.gpus]
        self._links_told_ns: int | None = None

    def show(self, model: NodeModel, into: Moment) -> None:
        """Add all results to a `Moment`. For a lost GPU every call returns the error GPU_IS_LOST."""
        parts = model.machine
        into.calls["nvml.nvmlDeviceGetCount()"] = len(model.gpus)
        into.calls["nvml.nvmlSystemGetDriverVersion()"] = parts.model.driver
        into.calls["nvml.nvmlSystemGetCudaDriverVersion()"] = identity.cuda_version(parts.model)
        confidential = settings.confidential_computing(parts.model)
        into.calls["nvml.nvmlSystemGetConfComputeState()"] = confidential
        self._look_at_links(model)
        for gpu, of_links in zip(model.gpus, self._links, strict=True):
            into.calls |= _as_it_answers(gpu, _answers(model, gpu) | of_links)
            sharing.show_files(gpu, into)
        self._events.show(model, into)

    def _look_at_links(self, model: NodeModel) -> None:
        last_ns, now_ns = self._links_told_ns, model.offset_ns
        if last_ns is not None and now_ns // LINKS_PERIOD_NS == last_ns // LINKS_PERIOD_NS:
            return
        self._links_told_ns = now_ns
        for place, gpu in enumerate(model.gpus):
            told = Answers(gpu.identity.index)
            links.tell(model.machine, gpu, told)
            self._links[place] = told.found


def _answers(model: NodeModel, gpu: GpuState) -> dict[str, Json]:
    told = Answers(gpu.identity.index)
    identity.tell(model.spec, gpu, told)
    load.tell(gpu, told)
    health.tell(gpu, told)
    settings.tell(gpu, told)
    activity.tell(gpu, told)
    sharing.tell(gpu, (model.spec.started_wall_ns + model.offset_ns) // NS_PER_US, told)
    found = told.found
    for device in gpu.sharing.mig_devices:
        found |= sharing.tell_instance(gpu, device).found
    return found


def _as_it_answers(gpu: GpuState, answers: dict[str, Json]) -> dict[str, Json]:
    """Return the results as the caller receives them: the GPU may be lost, hung, stuck or denied."""
    if gpu.lost:
        return dict.fromkeys(answers, GPU_IS_LOST)
    if gpu.hung:
        return dict.fromkeys(answers, TIMEOUT)
    if gpu.stuck:
        return dict.fromkeys(answers, PENDING)
    if gpu.denied:
        refused = [call for call in answers if call.startswith(_DENIED)]
        return answers | dict.fromkeys(refused, NO_PERMISSION)
    return answers
