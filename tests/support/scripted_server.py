"""A server in a thread that answers each request with scripted bytes, or with documents by path."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from railscope.timestamps import SECOND_NS

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS
"""Time of all responses with JSON."""
KEPT_OPEN = "Connection: keep-alive"
Script = Callable[[str], bytes]
"""Returns the whole response to a request by its target."""


@dataclass
class ScriptedServer:
    """Address of the server, and the requests that it received."""

    url: str
    requests: list[str] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    """Connections that were opened, also closed ones."""
    silent: threading.Event = field(default_factory=threading.Event)
    """While it is set, requests are read and not answered."""


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return a complete response; the connection is closed unless a header keeps it open."""
    ending = () if KEPT_OPEN in headers else ("Connection: close",)
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *ending, *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_response(content: Any, status: str = "200 OK", *headers: str) -> bytes:
    """Return a response with JSON, and the time."""
    return response(
        json.dumps(content).encode(),
        status,
        f"Date: {formatdate(NOW_NS // SECOND_NS, usegmt=True)}",
        *headers,
    )


def by_path(documents: Mapping[str, Any]) -> Script:
    """Return a script that answers with documents by path; others are not found."""

    def answer(target: str) -> bytes:
        path = target.partition("?")[0]
        if path not in documents:
            return json_response({"error": "unknown path"}, "404 Not Found")
        content = documents[path]
        return content if isinstance(content, bytes) else json_response(content)

    return answer


@contextmanager
def scripted_server(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """Serve until the end, with a thread for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scheme = "https" if tls else "http"
        server = ScriptedServer(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=_accept, args=(listener, server, script, tls))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(
    listener: socket.socket, server: ScriptedServer, script: Script, tls: ssl.SSLContext | None
) -> None:
    threads = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        threads.append(threading.Thread(target=_serve, args=(connection, server, script, tls)))
        threads[-1].start()
    for connection in server.connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()


def _serve(
    connection: socket.socket, server: ScriptedServer, script: Script, tls: ssl.SSLContext | None
) -> None:
    with connection, suppress(OSError):
        connection.settimeout(60)
        served = tls.wrap_socket(connection, server_side=True) if tls else connection
        with served:
            server.connections.append(served)
            while True:
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = served.recv(65_536)
                    request += piece
                    if not piece or not request.startswith(b"GET "):
                        return  # closed, or TLS where none is expected
                text = request.decode("latin-1")
                server.requests.append(text)
                if server.silent.is_set():
                    continue
                answer = script(text.split(" ")[1])
                served.sendall(answer)
                if KEPT_OPEN.encode() not in answer:
                    return
