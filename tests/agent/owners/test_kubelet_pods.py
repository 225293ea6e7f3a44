"""The kubelet's list of pods from a real HTTPS server: certificates, tokens, bounds and results."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.certificates import self_signed

from railscope.kubernetes_pods import MAX_TEXT
from railscope_agent.host.files import RootedFiles
from railscope_agent.host.kubelet_pods import read_pod_list
from railscope_agent.host.owners import KUBELET, PODS, OwnerCalls
from railscope_agent.owners import OwnerFormatError
from railscope_agent.owners.pod_list import parse_pod_list

ALLOCATED = "hami.io/vgpu-devices-allocated"
POD = {
    "metadata": {
        "name": "train", "namespace": "research", "uid": "u-1",
        "annotations": {ALLOCATED: "GPU-1,NVIDIA,3000,30:;", "secret.io/token": "hunter2"},
    },
    "spec": {"nodeName": "gpu-1", "containers": [{
        "name": "main", "env": [{"name": "PASSWORD", "value": "hunter2"}],
        "resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}},
    }], "initContainers": [{"name": "load"}, {"name": "proxy", "restartPolicy": "Always"}]},
    "status": {"phase": "Running"},
}  # fmt: skip
OTHER = {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [{"name": "x"}]}}


class FakeKubelet(ThreadingHTTPServer):
    """HTTPS server that answers GET /pods for a token."""

    daemon_threads = True

    def __init__(self, certificates: tuple[Path, Path] | None) -> None:
        super().__init__(("127.0.0.1", 0), FakeKubeletHandler)
        self.content, self.seen = json.dumps({"items": [POD, OTHER]}).encode(), list[str]()
        if certificates:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificates)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that reject the certificate: these tests expect them."""


class FakeKubeletHandler(BaseHTTPRequestHandler):
    server: FakeKubelet

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        allowed = self.headers.get("Authorization") in {"Bearer token", None}
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(self.server.content if allowed else b"Unauthorized")

    def log_message(self, *_: object) -> None:
        """Do not log."""


def serve(kubelet: FakeKubelet) -> Iterator[FakeKubelet]:
    thread = threading.Thread(target=kubelet.serve_forever)
    thread.start()
    yield kubelet
    kubelet.shutdown()
    thread.join()
    kubelet.server_close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path / "pki")


@pytest.fixture
def kubelet(certificate: tuple[Path, Path]) -> Iterator[FakeKubelet]:
    yield from serve(FakeKubelet(certificate))


@pytest.fixture
def plain() -> Iterator[FakeKubelet]:
    yield from serve(FakeKubelet(None))


def ask(url: str, token_file: object = "", ca_file: object = "") -> Any:
    owners = OwnerCalls(RootedFiles(Path("/")), live=True)
    return owners.call(KUBELET, PODS, url, str(token_file), str(ca_file))


def test_pods_over_https_with_a_token(kubelet, certificate, tmp_path):
    token = tmp_path / "token"
    token.write_text("token\n")
    url = f"https://127.0.0.1:{kubelet.server_port}"
    (pod,) = ask(url, token, certificate[0])
    assert pod == {
        "namespace": "research", "name": "train", "phase": "Running",
        "annotations": {ALLOCATED: "GPU-1,NVIDIA,3000,30:;"},
        "containers": [{"name": "main", "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}}],
        "sidecars": [False, True],
    }  # fmt: skip
    assert "hunter2" not in json.dumps(pod), "secrets of a pod do not come out"
    assert kubelet.seen == ["/pods"]


def test_a_kubelet_that_is_another_or_denies_it(kubelet, certificate, tmp_path):
    token = tmp_path / "token"
    token.write_text("wrong")
    url = f"https://127.0.0.1:{kubelet.server_port}/pods"
    with pytest.raises(PermissionError, match="nodes/proxy"):
        ask(url, token, certificate[0])
    other, _ = self_signed(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(url, token, other)
    assert kubelet.seen == ["/pods"], "no token went to a server that was not proven"


def test_pods_from_the_read_only_port_of_this_machine(plain, tmp_path):
    url = f"http://127.0.0.1:{plain.server_port}/pods"
    assert [pod["name"] for pod in ask(url)] == ["train"]
    token = tmp_path / "token"
    token.write_text("token")
    with pytest.raises(OSError, match="with a token: expected https:"):
        ask(url, token)
    with pytest.raises(OSError, match="expected https://NODE:10250/pods"):
        ask("http://192.0.2.1:10255/pods")
    with pytest.raises(OSError, match="expected https"):
        ask("ftp://127.0.0.1/pods")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"items": [{"metadata": 5}]}', b'{"items": "x"}']
)
def test_an_answer_that_is_not_a_list_of_pods(plain, content):
    plain.content = content
    with pytest.raises(OSError, match="invalid list of pods"):
        ask(f"http://127.0.0.1:{plain.server_port}")


def test_an_answer_that_is_too_large(plain):
    with pytest.raises(OSError, match="at most 100 bytes"):
        read_pod_list(f"http://127.0.0.1:{plain.server_port}", "", "", 20.0, max_bytes=100)


def test_missing_fields_of_a_pod():
    assert parse_pod_list(b'{"items": null}') == ()
    (pod,) = parse_pod_list(b'{"items": [{"metadata": {"name": "a", "annotations": null}}]}')
    labels = b'{"items": [{"metadata": {"labels": {"runai-gpu-group": "g", "gpu-fraction": "1"}}}]}'
    assert parse_pod_list(labels)[0].annotations == {"runai-gpu-group": "g"}
    assert (pod.name, pod.concerns_gpus) == ("a", False)
    long = json.dumps({"items": [{"metadata": {"annotations": {ALLOCATED: "x" * (MAX_TEXT + 1)}}}]})
    assert parse_pod_list(long.encode())[0].annotations == {}
    with pytest.raises(OwnerFormatError):
        parse_pod_list(b"\xff")
    with pytest.raises(OwnerFormatError, match="recursion"):
        parse_pod_list(b'{"x":' + b"[" * 100_000)
