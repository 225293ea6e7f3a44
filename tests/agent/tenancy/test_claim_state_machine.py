"""State machine of a node with agent restarts: no claim is lost or duplicated."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import fewer_examples
from support.machine import DENIED
from support.tenancy import (
    LISTED,
    PolledTenancy,
    end_process,
    keeps_pod,
    node,
    pod,
    start_process,
    uuid,
)

GPUS = 2
gpus = st.integers(0, GPUS - 1)


class NodeStateMachine(RuleBasedStateMachine):
    """Node with two GPUs, a kubelet, processes and a polling agent."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="story-"))
        self.host = node(GPUS)
        self.pods: dict[str, int] = {}
        self.unclaimed_gpus: dict[int, int] = {}
        self.count = 0
        self.kubelet_error: Exception | None = None
        self.is_synchronized = True
        self.host.calls[LISTED] = self.kubelet
        self.start()

    def start(self) -> None:
        self.looked = PolledTenancy(self.host)
        self.looked.tenancy.remember(self.directory, self.host.boot_id)
        self.begun: dict[tuple[str, ...], dict[str, str]] = getattr(self, "begun", {})
        self.ended: dict[tuple[str, ...], dict[str, str]] = getattr(self, "ended", {})

    def kubelet(self) -> list[dict[str, Any]]:
        if self.kubelet_error:
            raise self.kubelet_error
        return [pod(name, uuid(gpu)) for name, gpu in self.pods.items() if self.is_synchronized]

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(gpu=gpus)
    def a_pod_starts(self, gpu: int) -> None:
        self.count += 1
        name = f"pod-{self.count}"
        group = keeps_pod(self.host, self.count, name)
        self.pods[name] = gpu
        start_process(self.host, gpu, 1000 + self.count, group)

    @precondition(lambda self: self.pods)
    @rule()
    def a_pod_ends(self) -> None:
        name, gpu = self.pods.popitem()
        number = int(name.partition("-")[2])
        end_process(self.host, gpu, 1000 + number)
        for path in [p for p in self.host.files if f"{number:08d}" in p or f"_{name}_" in p]:
            del self.host.files[path]

    @rule(gpu=gpus)
    def an_unclaimed_process_starts(self, gpu: int) -> None:
        self.count += 1
        self.unclaimed_gpus[5000 + self.count] = gpu
        start_process(
            self.host, gpu, 5000 + self.count, f"/system.slice/unclaimed-{self.count}.service"
        )

    @precondition(lambda self: self.unclaimed_gpus)
    @rule()
    def an_unclaimed_process_ends(self) -> None:
        pid, gpu = self.unclaimed_gpus.popitem()
        end_process(self.host, gpu, pid)

    @rule(error=st.sampled_from([None, DENIED, TimeoutError(errno.ETIMEDOUT, "late")]))
    def the_kubelet_answers_or_not(self, error: Exception | None) -> None:
        self.kubelet_error = error

    @rule(is_synchronized=st.booleans())
    def the_kubelet_has_the_pods_or_not(self, *, is_synchronized: bool) -> None:
        self.is_synchronized = is_synchronized

    @rule(count=st.integers(0, GPUS))
    def the_driver_has_so_many_gpus(self, count: int) -> None:
        self.host.calls["nvml.nvmlDeviceGetCount()"] = count

    @rule()
    def the_agent_restarts(self) -> None:
        self.start()

    @rule()
    def the_agent_polls(self) -> None:
        before = {claim.id: claim for claim in self.looked.tenancy.active_claims}
        for event in self.looked.poll():
            kind, key, facts = event.event_class.name, event.entity.key, event.facts
            if kind.endswith("_start"):
                assert self.begun.setdefault(key, facts) == facts, "an id is one claim for ever"
            else:
                assert key in self.begun
                assert self.ended.setdefault(key, facts) == facts
                assert int(facts["end_ns"]) >= int(self.begun[key]["start_ns"])
        after = {claim.id: claim for claim in self.looked.tenancy.active_claims}
        closed = [before[name] for name in before.keys() - after.keys()]
        if self.kubelet_error:
            assert not [one for one in closed if one.adapter == "kubernetes"]
        assert not {one.claim.workload for one in closed} & {
            f"research/{name}" for name in self.pods
        }
        lost = {uuid(gpu) for gpu in range(self.host.calls["nvml.nvmlDeviceGetCount()"], GPUS)}
        assert not [one for one in closed if one.adapter == "unclaimed" and one.claim.gpu in lost]

    @rule()
    def everything_is_readable(self) -> None:
        """After polls at which every source answers, the open claims match the node."""
        self.the_kubelet_answers_or_not(None)
        self.the_kubelet_has_the_pods_or_not(is_synchronized=True)
        self.the_driver_has_so_many_gpus(GPUS)
        for _ in range(3):
            self.the_agent_polls()
        in_force = self.looked.tenancy.active_claims
        claims = {one.claim.workload: one.claim.gpu for one in in_force if one.is_claim}
        assert claims == {f"research/{name}": uuid(gpu) for name, gpu in self.pods.items()}
        unclaimed = sorted((one.claim.gpu, one.claim.pids) for one in in_force if not one.is_claim)
        assert unclaimed == sorted((uuid(gpu), (pid,)) for pid, gpu in self.unclaimed_gpus.items())

    @invariant()
    def active_claims_have_begun_and_not_ended(self) -> None:
        active_ids = {key[1] for key in self.begun.keys() - self.ended.keys()}
        assert {claim.id for claim in self.looked.tenancy.active_claims} <= active_ids


TestNodeStateMachine = NodeStateMachine.TestCase
TestNodeStateMachine.settings = settings(fewer_examples(80), stateful_step_count=25)
