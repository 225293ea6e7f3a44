"""From a spec to a capture: the model's state at each time step, and the differences."""

from __future__ import annotations

from collections.abc import Iterator

from railscope.capture import SECTIONS, About, Capture, Json, Moment
from simulator import (
    directories,
    driver_files,
    ethernet_settings,
    host,
    links,
    neighbours,
    nic,
    ofed_files,
    pcie,
    rdma,
    transceivers,
)
from simulator.gpu_models import find
from simulator.kernel import KernelLog
from simulator.model import NodeModel
from simulator.nic_models import nic_of
from simulator.nvml import Nvml
from simulator.owners import Owners
from simulator.removal import Removal
from simulator.span import NS_PER_SECOND
from simulator.span import seconds as to_ns
from simulator.spec import NodeSpec


def simulate(spec: NodeSpec, seconds: int, step_seconds: float = 1.0) -> Capture:
    """Simulate a node and return the complete capture in memory."""
    return Capture(about(spec, seconds), tuple(moments(spec, seconds, step_seconds)))


def about(spec: NodeSpec, seconds: int) -> About:
    """Return the capture's metadata. Raises ValueError for an unknown GPU model."""
    mode = "" if spec.mode == "whole" else f"GPUs in mode {spec.mode}, "
    return About(
        node=spec.node,
        boot_id=spec.boot_id,
        started_wall_ns=spec.started_wall_ns,
        started_boot_ns=spec.started_boot_ns,
        duration_ns=seconds * NS_PER_SECOND,
        origin=f"simulated: {spec.scenario}, {mode}seed {spec.seed}",
        hardware=f"{spec.gpus} x {find(spec.model).name}, one {_cards(spec)} a GPU and two for storage",
    )


def _cards(spec: NodeSpec) -> str:
    return " or ".join(sorted({nic_of(spec.nic, rail).name for rail in range(spec.gpus)}))


def moments(spec: NodeSpec, seconds: int, step_seconds: float = 1.0) -> Iterator[Moment]:
    """Simulate a node, one `Moment` per step, from offset zero to the end.

    Raises ValueError immediately for an empty simulation, or an invalid node.
    """
    step_ns, duration_ns = to_ns(step_seconds), seconds * NS_PER_SECOND
    if step_ns < 1 or duration_ns < step_ns:
        message = f"{seconds} s in steps of {step_seconds} s are no simulation"
        raise ValueError(message)
    return _moments(NodeModel(spec, duration_ns), duration_ns, step_ns)


class Views:
    """All interface views of a simulated node."""

    def __init__(self, model: NodeModel) -> None:
        self._model = model
        self._views = (
            Nvml(model).show, driver_files.show, rdma.show, nic.show, links.show,
            ethernet_settings.show, transceivers.show, neighbours.show, ofed_files.show, pcie.show,
            directories.show, host.show, Owners(model).show, KernelLog(model).show, Removal().show,
        )  # fmt: skip

    def show(self) -> Moment:
        """Return the present state of the model."""
        now = Moment(self._model.offset_ns)
        for show in self._views:
            show(self._model, now)
        return now


def _moments(model: NodeModel, duration_ns: int, step_ns: int) -> Iterator[Moment]:
    views = Views(model)
    known: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}
    for offset_ns in range(0, duration_ns + 1, step_ns):
        if offset_ns:
            model.advance(offset_ns)
        yield _changes(views.show(), known)


def _changes(now: Moment, known: dict[str, dict[str, Json]]) -> Moment:
    """Return the results that differ from `known`, and add them to it."""
    changed = Moment(now.offset_ns, log=now.log)
    for section in SECTIONS:
        seen = known[section]
        fresh = {
            key: value
            for key, value in getattr(now, section).items()
            if key not in seen or seen[key] != value
        }
        seen.update(fresh)
        getattr(changed, section).update(fresh)
    return changed
