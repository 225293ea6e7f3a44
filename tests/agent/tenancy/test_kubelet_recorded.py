"""A kubelet over its real socket, recorded and replayed: the claims are the same."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support import pod_resources as wire
from support.kubelet_server import Handler, run_kubelet
from support.tenancy import SOCKET, PolledTenancy, event_summaries, node, uuid

from railscope.capture import Capture, CaptureMetadata
from railscope_agent.config import TenancySettings
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.owners.kubernetes_devices import ClaimedDevice
from railscope_agent.owners.pod_resources import (
    KubeletPod,
    PodContainer,
    PodDevices,
    PodResourceClaim,
)
from railscope_agent.sampling.probe_result import ProbeFinding

PODS = (
    KubeletPod("train-0", "research", (PodContainer("main", (PodDevices("nvidia.com/gpu", (uuid(0),)),)),)),
    KubeletPod("web", "shop", (PodContainer("main"),)),
    KubeletPod(
        "claimed", "research",
        (PodContainer("main", (), (PodResourceClaim("c", "research", (ClaimedDevice("gpu.nvidia.com", "gpu-1"),)),)),),
    ),
)  # fmt: skip
LISTED = b"".join(wire.pod_entry(pod) for pod in PODS)


class LiveKubeletNode:
    """A fake node whose kubelet is real."""

    def __init__(self, socket: str) -> None:
        self.host = node()
        self.real = LiveHost()
        self.looked = PolledTenancy(self.host, TenancySettings(kubelet_socket=socket))
        ask = self.host.call

        def call(host_interface: str, function: str, *arguments: int | str) -> Any:
            host = self.real if host_interface == "kubelet" else None
            return (
                host.call(host_interface, function, *arguments)
                if host
                else ask(host_interface, function, *arguments)
            )

        self.host.call = call  # type: ignore[method-assign]

    def poll(self) -> list[tuple[str, ...]]:
        return event_summaries(self.looked.poll())

    @property
    def finding(self) -> ProbeFinding:
        return next(f for f in self.looked.findings if "Kubernetes" in f.subject)


def test_a_real_server_goes_away_and_comes_back(tmp_path):
    answers: dict[str, Handler] = {"List": lambda _request, _context: LISTED}
    live_node = LiveKubeletNode(str(tmp_path / "s"))
    with run_kubelet(tmp_path / "s", answers):
        assert live_node.poll() == [
            ("claim_start", "kubernetes", "research/train-0", uuid(0)),
            ("claim_start", "kubernetes", "research/claimed", uuid(1)),
        ]
    for _ in range(2):
        assert live_node.poll() == []
    assert live_node.finding.verdict == "broken"
    with run_kubelet(tmp_path / "s", {"List": lambda _request, _context: wire.pod_entry(PODS[0])}):
        assert live_node.poll() == [("claim_end", "kubernetes", "research/claimed", uuid(1))]
    with run_kubelet(tmp_path / "s", {}):
        assert live_node.poll() == []
        assert "status 12" in live_node.finding.detail


@pytest.mark.parametrize(
    ("content", "detail"),
    [(b"\xff", "invalid number"), (b"\x0a\x05ab", "truncated field 1")],
)
def test_an_answer_that_is_none(tmp_path, content, detail):
    live_node = LiveKubeletNode(str(tmp_path / "s"))
    with run_kubelet(tmp_path / "s", {"List": lambda _request, _context: LISTED}):
        assert len(live_node.poll()) == 2
    with run_kubelet(tmp_path / "s", {"List": lambda _request, _context: content}):
        assert live_node.poll() == []
        assert live_node.finding.verdict == "broken"
        assert detail in live_node.finding.detail


def test_a_server_that_rejects(tmp_path):
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        raise AssertionError

    live_node = LiveKubeletNode(str(tmp_path / "s"))
    with run_kubelet(tmp_path / "s", {"List": refuse}):
        live_node.poll()
    assert live_node.finding.verdict == "denied"
    assert "tenancy.conf" in live_node.finding.remedy


@pytest.mark.parametrize("hidden", [False, True])
def test_recorded_kubelet_calls_are_replayed(tmp_path, hidden):
    redactor = Redactor() if hidden else None
    host = RecordingHost(LiveHost(), redactor)
    with run_kubelet(tmp_path / "s", {"List": lambda _request, _context: LISTED}) as socket:
        answer = host.call("kubelet", "List", socket)
        with pytest.raises(OSError, match="status 12"):
            host.call("kubelet", "GetAllocatableResources", socket)
    moments = host.moments
    written = "".join(moment.to_line() for moment in moments)
    assert ("research" in written) is not hidden
    last_ns = moments[-1].offset_ns
    about = CaptureMetadata("n", "b", 0, 0, last_ns + 10**9, "recorded")
    replayed = RecordedHost(Capture(about, tuple(moments)), host.clock, lambda: last_ns)
    socket = redactor.scrub(socket) if redactor else socket
    again = replayed.call("kubelet", "List", socket)
    assert len(again) == len(answer) == 2, "pods without devices are ignored"
    assert (again == answer) is not hidden
    with pytest.raises(OSError, match="not supported"):
        replayed.call("kubelet", "GetAllocatableResources", socket)


def test_a_copied_tree_has_no_kubelet(tmp_path):
    with pytest.raises(FileNotFoundError):
        LiveHost(tmp_path).call("kubelet", "List", SOCKET)
