"""Whatever happens on a node, and whenever its agent is started anew: no claim is lost or doubled."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import fewer
from support.machine import DENIED
from support.tenancy import LISTED, NODE, Looked, ends, keeps_pod, node, pod, runs, uuid

GPUS = 2
gpus = st.integers(0, GPUS - 1)


class Node(RuleBasedStateMachine):
    """A node with two GPUs, a kubelet, processes, and an agent that looks."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="story-"))
        self.host = node(GPUS)
        self.pods: dict[str, int] = {}
        self.strays: dict[int, int] = {}
        self.count = 0
        self.away: Exception | None = None
        self.host.calls[LISTED] = self.kubelet
        self.start()

    def start(self) -> None:
        self.looked = Looked(self.host)
        self.looked.tenancy.remember(self.directory, NODE)
        self.begun: dict[tuple[str, ...], dict[str, str]] = getattr(self, "begun", {})
        self.over: dict[tuple[str, ...], dict[str, str]] = getattr(self, "over", {})

    def kubelet(self) -> list[dict[str, Any]]:
        if self.away:
            raise self.away
        return [pod(name, uuid(gpu)) for name, gpu in self.pods.items()]

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(gpu=gpus)
    def a_pod_comes(self, gpu: int) -> None:
        self.count += 1
        name = f"pod-{self.count}"
        group = keeps_pod(self.host, self.count, name)
        self.pods[name] = gpu
        runs(self.host, gpu, 1000 + self.count, group)

    @precondition(lambda self: self.pods)
    @rule()
    def a_pod_goes(self) -> None:
        name, gpu = self.pods.popitem()
        number = int(name.partition("-")[2])
        ends(self.host, gpu, 1000 + number)
        for path in [p for p in self.host.files if f"{number:08d}" in p or f"_{name}_" in p]:
            del self.host.files[path]

    @rule(gpu=gpus)
    def a_stray_comes(self, gpu: int) -> None:
        self.count += 1
        self.strays[5000 + self.count] = gpu
        runs(self.host, gpu, 5000 + self.count, f"/system.slice/stray-{self.count}.service")

    @precondition(lambda self: self.strays)
    @rule()
    def a_stray_goes(self) -> None:
        pid, gpu = self.strays.popitem()
        ends(self.host, gpu, pid)

    @rule(error=st.sampled_from([None, DENIED, TimeoutError(errno.ETIMEDOUT, "late")]))
    def the_kubelet_answers_or_not(self, error: Exception | None) -> None:
        self.away = error

    @rule(there=st.integers(0, GPUS))
    def the_driver_has_so_many_gpus(self, there: int) -> None:
        self.host.calls["nvml.nvmlDeviceGetCount()"] = there

    @rule()
    def the_agent_starts_anew(self) -> None:
        self.start()

    @rule()
    def time_goes_by(self) -> None:
        before = {one.id: one for one in self.looked.tenancy.open}
        for event in self.looked.look():
            kind, key, facts = event.event_class.name, event.entity.key, event.facts
            if kind.endswith("_start"):
                assert self.begun.setdefault(key, facts) == facts, "an id is one claim for ever"
            else:
                assert key in self.begun
                assert self.over.setdefault(key, facts) == facts
                assert int(facts["end_ns"]) >= int(self.begun[key]["start_ns"])
        after = {one.id: one for one in self.looked.tenancy.open}
        gone = [before[name] for name in before.keys() - after.keys()]
        if self.away:
            assert not [one for one in gone if one.adapter == "kubernetes"]
        lost = {uuid(gpu) for gpu in range(self.host.calls["nvml.nvmlDeviceGetCount()"], GPUS)}
        assert not [one for one in gone if one.adapter == "unclaimed" and one.held.gpu in lost]

    @rule()
    def all_is_quiet(self) -> None:
        """After two looks at which all answer, what is told is what there is."""
        self.the_kubelet_answers_or_not(None)
        self.the_driver_has_so_many_gpus(GPUS)
        for _ in range(3):
            self.time_goes_by()
        in_force = self.looked.tenancy.open
        claims = {one.held.workload: one.held.gpu for one in in_force if one.is_claim}
        assert claims == {f"research/{name}": uuid(gpu) for name, gpu in self.pods.items()}
        stray = sorted((one.held.gpu, one.held.pids) for one in in_force if not one.is_claim)
        assert stray == sorted((uuid(gpu), (pid,)) for pid, gpu in self.strays.items())

    @invariant()
    def what_is_in_force_is_what_began_and_is_not_over(self) -> None:
        told = {key[1] for key in self.begun.keys() - self.over.keys()}
        assert {one.id for one in self.looked.tenancy.open} <= told


TestAnyStory = Node.TestCase
TestAnyStory.settings = settings(fewer(40), stateful_step_count=25)
