"""Reports of NCCL's RAS subsystem in its forms, and a server that answers like it or in any other way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HOST = "10.20.0.7"


def rank(number: int, pid: int, *, host: str = HOST, status: Any = None, **counts: int) -> Any:
    """Return a rank that responded."""
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        }
        | (status or {}),
        "collective_counts": dict.fromkeys(KINDS, 0) | counts,
    }


def missing(number: int, pid: int, *, host: str = HOST, is_dead: bool = False) -> Any:
    """Return a rank that did not respond."""
    found = rank(number, pid, host=host)
    del found["collective_counts"]
    return found | {"status": {"unresponsive": True, "considered_dead": is_dead}}


def communicator(ranks: Sequence[Any], absent: Sequence[Any] = (), name: str = "0xa1") -> Any:
    """Return a communicator of these ranks."""
    return {
        "hash": name,
        "secondary_hash": "0x7:0x9",
        "size": len(ranks) + len(absent),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": list(ranks),
        "missing_ranks": list(absent),
    }


def report(*communicators: Any, version: str = "2.29.3") -> bytes:
    """Return a report as JSON in the layout of NCCL, without the comma that versions before 2.29.2 leave out."""
    content = {
        "nccl_version": version,
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-03-01 10:00:00",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    text = _format(content, 0)
    if version.startswith("2.28."):
        text = _without_comma(text)
    return f"{text}\n".encode()


def _format(value: Any, depth: int) -> str:
    inner, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, Mapping):
        items = [f'{inner}"{name}": {_format(item, depth + 1)}' for name, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{end}}}"
    if isinstance(value, list):
        items = [inner + _format(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{end}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _without_comma(text: str) -> str:
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if '"unresponsive"' in line:
            lines[index - 2] = lines[index - 2].rstrip(",")
    return "\n".join(lines)


def event(name: str, pid: int, host: str = HOST) -> bytes:
    """Return an event of MONITOR."""
    content = {
        "timestamp": "2026-03-01 10:00:05",
        "group": "LIFECYCLE",
        "event": name,
        "peer": {"host": host, "pid": pid, "cuda_devs": [1], "nvml_devs": [1]},
        "details": "",
    }
    return f"{_format(content, 0)}\n".encode()


Talk: TypeAlias = Callable[[socket.socket], None]


def received_line(connection: socket.socket) -> str:
    """Return the next line that the client sends; empty if it closed the connection."""
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1)):
        line += byte
    return line.decode().strip()


class RasServer:
    """Server on a loopback address; it records the lines that clients send."""

    def __init__(self, answer: bytes = b"", *, protocol: int = 2, has_json: bool = True) -> None:
        self.answer = answer
        self.events: list[bytes] = []
        """Content that MONITOR sends at once, in parts."""
        self.talk: Talk = self.talk_like_nccl
        self.lines: list[str] = []
        self._protocol, self._has_json = protocol, has_json
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.monitors: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def talk_like_nccl(self, connection: socket.socket) -> None:
        """Answer the requests of one client."""
        while line := received_line(connection):
            self.lines.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                connection.sendall(f"SERVER PROTOCOL {self._protocol}\n".encode())
            elif line == "SET FORMAT json" and not self._has_json:
                connection.sendall(b"ERROR: Unknown command 'SET FORMAT json'\n")
            elif line == "VERBOSE STATUS":
                connection.sendall(self.answer)
                return
            elif line.startswith("MONITOR"):
                self.monitors.append(connection.dup())
                connection.sendall(b"OK\n" + b"".join(self.events))
                return
            else:
                connection.sendall(b"OK\n")

    def wait_until_stopped(self, seconds: float | None = None) -> bool:
        """Wait for the end of the test, as a server that never answers, or for a time; True if it has ended."""
        return self._stopped.wait(seconds)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.talk(connection)

    @contextlib.contextmanager
    def running(self) -> Iterator[RasServer]:
        """Serve until the end of the context."""
        accepting = threading.Thread(target=self._serve, daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            accepting.join()
            for monitor in self.monitors:
                monitor.close()
            for thread in self._threads:
                thread.join()
