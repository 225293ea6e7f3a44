"""Calls to a kubelet: a real gRPC server on a Unix socket, and misbehaving servers."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from hypothesis import given, strategies as st
from support import pod_resources as wire
from support.kubelet_server import Handler, run_kubelet

from railscope.reading import Absent, reason_of
from railscope_agent.host.kubelet import call_kubelet
from railscope_agent.host.owners import ALLOCATABLE, LIST
from railscope_agent.owners.pod_resources import (
    KubeletPod,
    PodContainer,
    PodDevices,
    parse_allocatable,
    parse_pods,
)

MANY = tuple(
    KubeletPod(
        f"pod-{n}", "lab", (PodContainer("main", (PodDevices("nvidia.com/gpu", (f"GPU-{n}",)),)),)
    )
    for n in range(2_000)
)
GPUS = PodDevices("nvidia.com/gpu", ("GPU-0", "GPU-1"))
SHORT = 0.2


def names(of: KubeletPod) -> bytes:
    return wire.text(1, of.name) + wire.text(2, of.namespace)


def get(request: bytes, context: grpc.ServicerContext) -> bytes:
    for known in MANY:
        if names(known) == request:
            return wire.pod_entry(known)
    context.abort(grpc.StatusCode.NOT_FOUND, "pod is not here, 100 % sure: ä")
    raise AssertionError


GET = "Get"
METHODS: dict[str, Handler] = {
    LIST: lambda _request, _context: b"".join(map(wire.pod_entry, MANY)),
    ALLOCATABLE: lambda _request, _context: wire.piece(1, wire.devices(GPUS)),
    GET: get,
}


@pytest.fixture(scope="module")
def kubelet_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_kubelet(tmp_path_factory.mktemp("kubelet") / "kubelet.sock", METHODS) as path:
        yield path


def test_a_list_of_many_pods(kubelet_socket):
    """The answer exceeds the initial HTTP/2 windows: the client has to update them."""
    listed = call_kubelet(kubelet_socket, LIST)
    assert len(listed) > 65_535
    assert parse_pods(listed) == MANY


def test_the_devices_that_could_be_given(kubelet_socket):
    assert parse_allocatable(call_kubelet(kubelet_socket, ALLOCATABLE)) == (GPUS,)


def test_one_pod(kubelet_socket):
    assert parse_pods(call_kubelet(kubelet_socket, GET, names(MANY[7]))) == (MANY[7],)


def test_a_pod_that_is_not_there(kubelet_socket):
    with pytest.raises(FileNotFoundError, match="status 5, pod is not here, 100 % sure: ä"):
        call_kubelet(kubelet_socket, GET, b"")


def test_no_server_and_no_socket(tmp_path):
    with pytest.raises(FileNotFoundError):
        call_kubelet(str(tmp_path / "kubelet.sock"), LIST)
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed.sock"))
    with pytest.raises(ConnectionRefusedError):
        call_kubelet(str(tmp_path / "closed.sock"), LIST)


CODES = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Absent.TIMEOUT,
    grpc.StatusCode.PERMISSION_DENIED: Absent.DENIED,
    grpc.StatusCode.UNAUTHENTICATED: Absent.DENIED,
    grpc.StatusCode.NOT_FOUND: Absent.GONE,
    grpc.StatusCode.UNIMPLEMENTED: Absent.UNSUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Absent.ERROR,
    grpc.StatusCode.INTERNAL: Absent.ERROR,
}


@pytest.mark.parametrize("code", CODES)
def test_each_rejection_is_a_reason(tmp_path, code):
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "no")
        raise AssertionError

    with run_kubelet(tmp_path / "s", {LIST: refuse}) as path, pytest.raises(OSError) as refused:  # noqa: PT011
        call_kubelet(path, LIST)
    assert reason_of(refused.value) is CODES[code]


def test_an_older_kubelet_has_not_all_methods(tmp_path):
    with run_kubelet(tmp_path / "s", {LIST: METHODS[LIST]}) as path:
        with pytest.raises(OSError, match="status 12") as refused:
            call_kubelet(path, GET)
        assert reason_of(refused.value) is Absent.UNSUPPORTED


def test_a_server_that_never_answers(tmp_path):
    released = threading.Event()

    def hang(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        released.wait()
        return b""

    with run_kubelet(tmp_path / "s", {LIST: hang}) as path, contextlib.ExitStack() as last:
        last.callback(released.set)
        with pytest.raises(OSError) as late:  # noqa: PT011
            call_kubelet(path, LIST, timeout_seconds=SHORT)
    assert reason_of(late.value) is Absent.TIMEOUT


def test_a_server_that_never_responds(tmp_path):
    received = threading.Event()
    with (
        serving_once(tmp_path / "s", lambda _: received.wait()) as path,
        contextlib.ExitStack() as last,
    ):
        last.callback(received.set)
        with pytest.raises(TimeoutError):
            call_kubelet(path, LIST, timeout_seconds=SHORT)


def test_an_answer_that_would_fill_the_memory(tmp_path):
    huge: dict[str, Handler] = {LIST: lambda _request, _context: bytes(100_000)}
    with (
        run_kubelet(tmp_path / "s", huge) as path,
        pytest.raises(OSError, match="at most 50000") as refused,
    ):
        call_kubelet(path, LIST, max_bytes=50_000)
    assert refused.value.errno == errno.EMSGSIZE


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
SETTINGS = bytes.fromhex("000000040000000000")


@given(st.one_of(st.binary(), st.lists(FRAMES).map(lambda frames: SETTINGS + b"".join(frames))))
def test_any_bytes_are_an_error_of_the_system(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "s"
    with (
        serving_once(path, lambda connection: connection.sendall(noise)) as where,
        pytest.raises(OSError),  # noqa: PT011
    ):
        call_kubelet(where, LIST)
