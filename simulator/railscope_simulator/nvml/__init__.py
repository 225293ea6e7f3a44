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
from railscope_simulator import node_model
from railscope_simulator.gpu import GpuState
from railscope_simulator.nvml import health, load, results, settings, sharing
from railscope_simulator.spec import NodeSpec, seconds_to_ns

LINKS_PERIOD_NS = seconds_to_ns(10.0)
"""Period of per-link values, equal to the agents' period: there are many of them."""

_DENIED = (results.GPM, "nvml.nvmlDeviceGetSramEccErrorStatus")


class SimulatedNvml:
    """NVML on the simulated node."""

    def __init__(self, model: node_model.NodeModel) -> None:
        self._events = results.NvmlEventLog()
        self._links = [results.NvmlResults(gpu.identity.index) for gpu in model.gpus]
        self._constants = [_GpuConstants(model.spec, gpu) for gpu in model.gpus]
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
        for gpu, of_links, constants in zip(model.gpus, self._links, self._constants, strict=True):
            # A dictionary of its own only for these: a healthy GPU writes to that of the node, without a
            # copy.
            if gpu.lost or gpu.hung or gpu.stuck or gpu.denied:
                answers = results.NvmlResults(gpu.identity.index)
                _add_answers(model, gpu, constants, answers)
                into.calls |= _as_it_answers(gpu, answers.found | of_links.found)
            else:
                answers = results.NvmlResults(gpu.identity.index, into.calls)
                _add_answers(model, gpu, constants, answers)
                into.calls |= of_links.found
            sharing.show_files(gpu, into)
        self._events.show(model, into)

    def _refresh_links(self, model: node_model.NodeModel) -> None:
        last_ns, now_ns = self._links_shown_ns, model.offset_ns
        if last_ns is not None and now_ns // LINKS_PERIOD_NS == last_ns // LINKS_PERIOD_NS:
            return
        self._links_shown_ns = now_ns
        for gpu, into in zip(model.gpus, self._links, strict=True):
            health.add_links(model.machine, gpu, into)


class _GpuConstants:
    """Results of a GPU that never change, and those that change with the use of its memory only."""

    def __init__(self, spec: NodeSpec, gpu: GpuState) -> None:
        into = results.NvmlResults(gpu.identity.index)
        settings.add_identity(spec, gpu, into)
        self.identity = into.found
        self._settings: dict[str, Json] = {}
        self._key: tuple[int, str] | None = None

    def settings(self, gpu: GpuState) -> dict[str, Json]:
        """Return the settings of the GPU."""
        key = settings.mapped_bytes(gpu), gpu.sharing.mode
        if key != self._key:
            into = results.NvmlResults(gpu.identity.index)
            settings.add_settings(gpu, into)
            self._key, self._settings = key, into.found
        return self._settings


def _add_answers(
    model: node_model.NodeModel,
    gpu: GpuState,
    constants: _GpuConstants,
    into: results.NvmlResults,
) -> None:
    into.found |= constants.identity
    load.add_load(gpu, into)
    health.add_health(gpu, into)
    into.found |= constants.settings(gpu)
    load.add_gpm_metrics(gpu, into)
    sharing.add_tenants(gpu, (model.spec.started_wall_ns + model.offset_ns) // MICROSECOND_NS, into)
    for device in gpu.sharing.mig_devices:
        into.found |= sharing.instance_results(gpu, device).found


def _as_it_answers(gpu: GpuState, answers: dict[str, Json]) -> dict[str, Json]:
    """Return the results of a GPU that is lost, hung, stuck or denied as the caller receives them."""
    if gpu.lost:
        return dict.fromkeys(answers, results.GPU_IS_LOST)
    if gpu.hung:
        return dict.fromkeys(answers, results.TIMEOUT)
    if gpu.stuck:
        return dict.fromkeys(answers, PENDING)
    denied_calls = [call for call in answers if call.startswith(_DENIED)]
    return answers | dict.fromkeys(denied_calls, results.NO_PERMISSION)
