"""A worker server of PyTorch on a Unix socket or a port, with any answers; it records the requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NCCL, OTHER = "/handler/dump_nccl_trace_json", "/handler/fr_trace_json"
SUMMARY = f"{NCCL}?includecollectives=false"


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return an answer of httplib, which keeps the connection open after a request that it can answer."""
    lines = [f"HTTP/1.1 {status}", *headers, "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


NOT_FOUND = http_answer(b"Handler not found", "404 Not Found", "Connection: close")


@dataclass
class PytorchServer:
    """Worker server of one rank; `answers` has whole answers by path and query, or None to be silent."""

    answers: Mapping[str, bytes | None]
    requests: list[str] = field(default_factory=list)
    port: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, path: Path | None = None) -> Iterator[PytorchServer]:
        """Serve on a Unix socket, or on a free port of all addresses."""
        if path:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            listener.listen(5)
        else:
            listener = socket.create_server(
                ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=5
            )
            self.port = listener.getsockname()[1]
        threads = [threading.Thread(target=self._accept, args=(listener,))]
        threads[0].start()
        try:
            yield self
        finally:
            self.stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        threads = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=self._serve, args=(connection,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(10)
            request = b""
            while b"\r\n\r\n" not in request and (part := connection.recv(65_536)):
                request += part
            if not request:
                return
            head = request.decode("latin-1")
            self.requests.append(head)
            answer = self.answers.get(head.split(" ")[1], NOT_FOUND)
            if answer is None:
                self.stopped.wait()
                return
            connection.sendall(answer)
            if answer is not NOT_FOUND:
                connection.recv(1)  # until the client closes
