"""Calls to a kubelet: a real gRPC server on a Unix socket, an HTTPS server, and servers that misbehave."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from hypothesis import given, strategies as st
from support.certificates import self_signed

from railscope.kubernetes_pods import MAX_TEXT
from railscope.reading import Absent, reason_of
from railscope_agent.host.files import RootedFiles
from railscope_agent.host.kubelet import call_kubelet
from railscope_agent.host.kubelet_pods import read_pod_list
from railscope_agent.host.owners import ALLOCATABLE, KUBELET, LIST, PODS, OwnerCalls
from railscope_agent.owners import OwnerFormatError
from railscope_agent.owners.pod_list import parse_pod_list
from railscope_agent.owners.pod_resources import parse_allocatable, parse_pods

Message = dict[int, Any]
Handler = Callable[[bytes, grpc.ServicerContext], bytes]
SHORT = 0.2


def varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def encoded(message: Message) -> bytes:
    """Encode a message of protobuf by its specification: numbers, texts, messages and lists of them."""
    written = b""
    for number, values in message.items():
        for value in values if isinstance(values, list) else [values]:
            content = encoded(value) if isinstance(value, dict) else value
            content = content.encode() if isinstance(content, str) else content
            if isinstance(content, int):
                written += varint(number << 3) + varint(content)
            else:
                written += varint(number << 3 | 2) + varint(len(content)) + content
    return written


def pod(name: str, *ids: str) -> Message:
    devices = {1: "nvidia.com/gpu", 2: list(ids), 3: {1: {1: 1}}}
    return {1: name, 2: "lab", 3: [{1: "main", 2: [devices]}]}


CLAIM = {2: "c", 3: "lab", 4: [{1: [{1: "k8s.gpu.nvidia.com/claim=1"}], 2: "gpu.nvidia.com", 3: "node-1", 4: "gpu-0", 5: "s"}]}  # fmt: skip
LISTED = {1: [pod("train", "GPU-a", "GPU-b"), {1: "web", 2: "shop", 3: [{1: "main"}]}, {1: "claimed", 2: "lab", 3: [{1: "main", 5: [CLAIM]}]}]}  # fmt: skip


@contextlib.contextmanager
def run_kubelet(path: Path, methods: dict[str, Handler]) -> Iterator[str]:
    """Run a server with these methods, whose requests and responses are encoded messages."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(run) for name, run in methods.items()}
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield str(path)
    finally:
        server.stop(0).wait()


def ask(function: str, *arguments: object) -> Any:
    calls = OwnerCalls(RootedFiles(Path("/")), live=True)
    return calls.call(KUBELET, function, *map(str, arguments))


def ask_pods(url: str, token_file: object = "", ca_file: object = "") -> Any:
    return ask(PODS, url, token_file, ca_file)


def test_pods_with_devices_and_the_devices_that_could_be_given(tmp_path):
    """The list exceeds the initial windows of HTTP/2: the client has to update them."""
    many = {1: [pod(f"pod-{number}", f"GPU-{number}") for number in range(2_000)]}
    methods: dict[str, Handler] = {
        LIST: lambda *_: encoded(LISTED) + encoded(many),
        ALLOCATABLE: lambda *_: encoded({1: [{1: "nvidia.com/gpu", 2: ["GPU-0", "GPU-1"]}]}),
    }
    with run_kubelet(tmp_path / "s", methods) as path:
        train, claimed, *others = ask(LIST, path)
        assert len(call_kubelet(path, LIST)) > 65_535
        allocatable = ask(ALLOCATABLE, path)
    assert train == {
        "name": "train", "namespace": "lab",
        "containers": [{"name": "main", "devices": [{"resource": "nvidia.com/gpu", "ids": ["GPU-a", "GPU-b"]}], "claims": []}],
    }  # fmt: skip
    assert claimed["containers"][0]["claims"] == [{
        "name": "c", "namespace": "lab", "cdi_names": ["k8s.gpu.nvidia.com/claim=1"],
        "devices": [{"driver": "gpu.nvidia.com", "device": "gpu-0", "share": "s"}],
    }]  # fmt: skip
    assert [each["name"] for each in others] == [f"pod-{number}" for number in range(2_000)]
    assert allocatable == [{"resource": "nvidia.com/gpu", "ids": ["GPU-0", "GPU-1"]}]


NAMES = st.text(min_size=1, max_size=12)
LATER = st.dictionaries(st.integers(100, 2**29 - 1), st.integers(0, 2**64 - 1) | st.binary(max_size=20), max_size=2)  # fmt: skip
DEVICES = st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), max_size=3)


@given(st.lists(st.tuples(NAMES, NAMES, DEVICES), max_size=3), LATER)
def test_pods_come_back_whatever_later_versions_add(pods, later):
    listed = [
        {**later, 1: name, 2: namespace, 3: [{1: "main", 2: [{1: of, 2: ids, **later} for of, ids in devices]}]}
        for name, namespace, devices in pods
    ]  # fmt: skip
    content = encoded({**later, 1: listed})
    found = [
        (each.name, each.namespace, [(of.resource, [*of.ids]) for of in each.containers[0].devices])
        for each in parse_pods(content)
    ]
    assert found == pods


def test_an_answer_that_was_cut_is_never_taken_for_a_whole_one():
    content = encoded({1: pod("train", "GPU-a")})
    for length in range(1, len(content)):
        with pytest.raises(OwnerFormatError):
            parse_pods(content[:length])


@given(st.binary())
def test_any_bytes_are_an_answer_or_are_none(content):
    for parse in (parse_pods, parse_allocatable):
        with contextlib.suppress(OwnerFormatError):
            parse(content)


def test_no_server_and_no_socket(tmp_path):
    with pytest.raises(FileNotFoundError):
        ask(LIST, tmp_path / "kubelet.sock")
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed.sock"))
    with pytest.raises(ConnectionRefusedError):
        ask(LIST, tmp_path / "closed.sock")
    with pytest.raises(FileNotFoundError, match="copied tree"):
        OwnerCalls(RootedFiles(tmp_path), live=False).call(KUBELET, LIST, "s")


CODES = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Absent.TIMEOUT,
    grpc.StatusCode.PERMISSION_DENIED: Absent.DENIED,
    grpc.StatusCode.UNAUTHENTICATED: Absent.DENIED,
    grpc.StatusCode.NOT_FOUND: Absent.GONE,
    grpc.StatusCode.UNIMPLEMENTED: Absent.UNSUPPORTED,
    grpc.StatusCode.INTERNAL: Absent.ERROR,
}


def test_each_rejection_is_a_reason(tmp_path):
    codes = list(CODES)

    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(codes[0], "100 % sure: ä")
        raise AssertionError

    with run_kubelet(tmp_path / "s", {LIST: refuse}) as path:
        while codes:
            with pytest.raises(OSError, match="100 % sure: ä") as refused:
                call_kubelet(path, LIST)
            assert reason_of(refused.value) is CODES[codes.pop(0)]


def test_an_answer_that_is_late_or_would_fill_the_memory(tmp_path):
    released = threading.Event()

    def hang(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        released.wait()
        return b""

    methods: dict[str, Handler] = {LIST: hang, ALLOCATABLE: lambda *_: bytes(100_000)}
    with run_kubelet(tmp_path / "s", methods) as path, contextlib.ExitStack() as last:
        last.callback(released.set)
        with pytest.raises(OSError, match="at most 50000") as refused:
            call_kubelet(path, ALLOCATABLE, max_bytes=50_000)
        assert refused.value.errno == errno.EMSGSIZE
        with pytest.raises(OSError) as late:  # noqa: PT011
            call_kubelet(path, LIST, timeout_seconds=SHORT)
    assert reason_of(late.value) is Absent.TIMEOUT


@contextlib.contextmanager
def serving_once(path: Path, speak: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve one connection with the bytes of a test, then close it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                speak(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            thread.join()


def speak_http2(reply: Callable[[H2Connection], object]) -> Callable[[socket.socket], None]:
    """Serve valid HTTP/2 until the request has arrived, then send one reply."""

    def speak(connection: socket.socket) -> None:
        http = H2Connection(H2Configuration(client_side=False))
        http.initiate_connection()
        connection.sendall(http.data_to_send())
        while True:
            events = http.receive_data(connection.recv(65_536))
            if any(isinstance(event, StreamEnded) for event in events):
                reply(http)
                connection.sendall(http.data_to_send())
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):  # until the client closes: its writes must not fail
                    pass
                return

    return speak


def answer(http: H2Connection, headers: dict[str, str], content: bytes = b"") -> None:
    http.send_headers(1, headers.items(), end_stream=not content)
    if content:
        http.send_data(1, content, end_stream=True)


OK = {":status": "200", "grpc-status": "0"}


@pytest.mark.parametrize(
    ("headers", "content", "problem"),
    [
        ({":status": "404"}, b"", "HTTP 404"),
        ({":status": "200"}, b"", "status ''"),
        ({":status": "200", "grpc-status": "x"}, b"", "status 'x'"),
        (OK, b"", "expected a message"),
        (OK, b"\0\0\0\0", "expected a message"),
        (OK, b"\1\0\0\0\0", "compressed"),
        (OK, b"\0\0\0\0\2x", "expected one uncompressed message"),
        (OK, b"\0\0\0\0\0\0\0\0\0\0", "expected one uncompressed message"),
    ],
)
def test_answers_that_are_none_of_grpc(tmp_path, headers, content, problem):
    with (
        serving_once(
            tmp_path / "s", speak_http2(lambda http: answer(http, headers, content))
        ) as path,
        pytest.raises(OSError, match=problem) as refused,
    ):
        call_kubelet(path, LIST)
    assert refused.value.errno == errno.EPROTO


GIVES_UP: dict[str, Callable[[socket.socket], object]] = {
    "at once": lambda _: None,
    "after the request": lambda connection: connection.recv(65_536),
    "within the answer": speak_http2(lambda http: http.send_headers(1, OK.items())),
    "by a reset of the stream": speak_http2(lambda http: http.reset_stream(1)),
    "by an end of the connection": speak_http2(lambda http: http.close_connection()),
}


@pytest.mark.parametrize("when", GIVES_UP)
def test_a_server_that_gives_up(tmp_path, when):
    with serving_once(tmp_path / "s", GIVES_UP[when]) as path, pytest.raises(ConnectionError):
        call_kubelet(path, LIST)


def test_an_answer_counts_although_the_server_ends_right_after_it(tmp_path):
    def answer_and_close(http: H2Connection) -> None:
        answer(http, OK, b"\0\0\0\0\1x")
        http.close_connection()

    with serving_once(tmp_path / "s", speak_http2(answer_and_close)) as path:
        assert call_kubelet(path, LIST) == b"x"


FRAMES = st.builds(
    lambda kind, flags, stream, content: (
        len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content
    ),
    st.integers(0, 12),
    st.integers(0, 255),
    st.integers(0, 3),
    st.binary(max_size=20),
)
PREFACE = bytes.fromhex("000000040000000000")


@given(st.one_of(st.binary(), st.lists(FRAMES).map(lambda frames: PREFACE + b"".join(frames))))
def test_any_bytes_are_an_error_of_the_system(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "s"
    with (
        serving_once(path, lambda connection: connection.sendall(noise)) as where,
        pytest.raises(OSError),  # noqa: PT011
    ):
        call_kubelet(where, LIST)


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


def test_pods_over_https_with_a_token(kubelet, certificate, tmp_path):
    token = tmp_path / "token"
    token.write_text("token\n")
    url = f"https://127.0.0.1:{kubelet.server_port}"
    (pod,) = ask_pods(url, token, certificate[0])
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
        ask_pods(url, token, certificate[0])
    other, _ = self_signed(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask_pods(url, token, other)
    assert kubelet.seen == ["/pods"], "no token went to a server that was not proven"


def test_pods_from_the_read_only_port_of_this_machine(plain, tmp_path):
    url = f"http://127.0.0.1:{plain.server_port}/pods"
    assert [pod["name"] for pod in ask_pods(url)] == ["train"]
    token = tmp_path / "token"
    token.write_text("token")
    with pytest.raises(OSError, match="with a token: expected https:"):
        ask_pods(url, token)
    with pytest.raises(OSError, match="expected https://NODE:10250/pods"):
        ask_pods("http://192.0.2.1:10255/pods")
    with pytest.raises(OSError, match="expected https"):
        ask_pods("ftp://127.0.0.1/pods")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"items": [{"metadata": 5}]}', b'{"items": "x"}']
)
def test_an_answer_that_is_not_a_list_of_pods(plain, content):
    plain.content = content
    with pytest.raises(OSError, match="invalid list of pods"):
        ask_pods(f"http://127.0.0.1:{plain.server_port}")


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
