"""PyTorch's worker servers in processes of this node: progress and dumps of flight recorders over HTTP.

A worker server is a thread of a rank that answers requests on a Unix socket (`TORCH_WORKER_SERVER_SOCKET` and
torch.distributed.elastic.control_plane.worker_main) or on a TCP port (torch.distributed.debug.start_debug_server). It has a
handler by name for each kind of request, and no authentication. Without `includecollectives`, the handler of NCCL returns the
numbers of the last collectives only, and copies no record. Source: pytorch/pytorch torch/csrc/distributed/c10d/control_plane/
and FlightRecorder.cpp.

Tenants control these processes. A socket is connected to without following a link, and an answer counts if the kernel names the owner of
the socket at the other end; that of a port, if it names the user of the process that listens, and the process has the connection and its
former start: the number of one that has ended can be that of another tenant's. Every request has one deadline, answers are bounded,
redirects are not followed, and only JSON is parsed.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from railscope import http_responses
from railscope.capture import Json
from railscope.untrusted_text import printable
from railscope_agent.collectives import CollectiveFormatError, flight_recorder
from railscope_agent.host import job_files, tcp_sockets

if TYPE_CHECKING:
    from http.client import HTTPConnection

WORKER_SERVERS = "worker_server"
MAX_ANSWER_BYTES = job_files.MAX_DUMP_BYTES
HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")
"""Records of NCCL, and those of other backends; PyTorch without CUDA has no handler of NCCL."""
SUMMARY = "?includecollectives=false"
"""Query of the handler of NCCL for the numbers of the last collectives only."""
_LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("3i")
_OK, _NOT_FOUND = 200, 404


class WorkerAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of a worker server: last enqueued and last completed collective of each group, or the dump."""

    progress: dict[str, tuple[int, int]] = {}
    dump: flight_recorder.FlightRecorderDump | None = None


class WorkerServerCalls:
    """The host interface "worker_server". Without `live`, there are no processes."""

    def __init__(
        self,
        files: job_files.JobFileCalls,
        sockets: tcp_sockets.TcpSockets,
        *,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._sockets = files, sockets
        self._live = live
        self._clock = clock

    def call(self, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError.

        worker_server.listeners(ports, *pids)                       [port, process] for each of these processes that listens
        worker_server.progress(timeout_ms, directory, job, name)    WorkerAnswer of a socket
        worker_server.progress(timeout_ms, port, pid, user, started_ns)  WorkerAnswer of a process
        worker_server.dump(timeout_ms, ...)                         likewise, with the dump

        EPERM: another user or process answered; EPROTO: another status; EBADMSG: malformed; EMSGSIZE: too large;
        EINVAL: not a socket.
        """
        if not self._live:
            raise OSError(errno.ENODEV, "processes are not available in a copied tree")
        if function == "listeners":
            ports = {int(port) for port in str(arguments[0]).split()}
            found = self._sockets.listening_processes(ports, map(int, arguments[1:]))
            return [[port, pid] for port, pid in sorted(found.items())]
        timeout_ms, *endpoint = arguments
        name = format_endpoint(*endpoint)
        try:
            return msgspec.to_builtins(self._ask(function, int(timeout_ms) / 1000, endpoint))
        except TimeoutError as error:
            problem = f"no complete answer within {int(timeout_ms) / 1000:g} s"
            raise TimeoutError(errno.ETIMEDOUT, f"{name}: {problem}") from error
        except CollectiveFormatError as error:
            raise OSError(errno.EBADMSG, f"{name}: {error}") from error
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror or error}") from error

    def _ask(self, function: str, seconds: float, endpoint: list[int | str]) -> WorkerAnswer:
        deadline = self._clock() + seconds
        answer: WorkerAnswer | None = None
        for handler in HANDLERS:
            query = SUMMARY if function == "progress" and handler == HANDLERS[0] else ""
            content = self._request(f"/handler/{handler}{query}", deadline, endpoint)
            if content is None:
                continue
            # Only JSON, although the parser of dumps reads pickles as well: these handlers return none.
            if content[:1] != b"{":
                message = "expected a JSON object"
                raise CollectiveFormatError(message)
            answer = WorkerAnswer(flight_recorder.parse_progress(content))
            if function == "dump":
                answer = WorkerAnswer(answer.progress, flight_recorder.parse_dump(content))
            if answer.progress:
                return answer
        if answer is None:
            raise OSError(
                errno.EPROTO,
                f"status {_NOT_FOUND}: expected a handler {HANDLERS[0]} or {HANDLERS[1]}",
            )
        return answer

    def _request(self, path: str, deadline: float, endpoint: list[int | str]) -> bytes | None:
        """Return the content of an answer; None if there is no such handler."""
        from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - 1 MiB

        connection = HTTPConnection("localhost")
        try:
            check_peer = self._connect(connection, deadline, endpoint)
            seconds = self._remaining(deadline, connection.sock)
            http_responses.bound_responses(connection, MAX_ANSWER_BYTES, seconds)
            connection.request("POST", path)
            with connection.getresponse() as answer:
                if answer.status == _NOT_FOUND:
                    return None
                if answer.status != _OK:
                    raise OSError(errno.EPROTO, f"status {answer.status}: expected {_OK}")
                check_peer()  # while it is open: a connection that its server closed has no process
                content = answer.read(MAX_ANSWER_BYTES + 1)
        except (HTTPException, ValueError) as error:
            raise OSError(errno.EBADMSG, f"{type(error).__name__}: {error}"[:200]) from error
        finally:
            connection.close()
        if len(content) > MAX_ANSWER_BYTES:
            raise OSError(errno.EMSGSIZE, f"expected at most {MAX_ANSWER_BYTES} bytes")
        return content

    def _remaining(self, deadline: float, connected: socket.socket) -> float:
        seconds = deadline - self._clock()
        if seconds <= 0:
            raise TimeoutError
        connected.settimeout(seconds)
        return seconds

    def _connect(
        self, connection: HTTPConnection, deadline: float, endpoint: list[int | str]
    ) -> Callable[[], None]:
        """Connect, and return a check that the endpoint is what it has to be, for the time after it has answered."""
        if isinstance(endpoint[0], int):
            port, pid, user, started_ns = map(int, endpoint)
            connection.sock = socket.socket(socket.AF_INET)
            self._remaining(deadline, connection.sock)
            connection.sock.connect((_LOOPBACK, port))
            ends = (_LOOPBACK, port), connection.sock.getsockname()[:2]
            return lambda: self._check_process((pid, user, started_ns), *ends)
        connection.sock = socket.socket(socket.AF_UNIX)
        self._remaining(deadline, connection.sock)
        directory, job, name = map(str, endpoint)
        with self._files.opened_parent(directory, job, name) as parent:
            opened = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
        try:
            status = os.fstat(opened)
            if not stat.S_ISSOCK(status.st_mode) or status.st_nlink != 1:
                raise OSError(errno.EINVAL, "not a socket")
            # By the opened file: the name could be replaced by a link, and a path may be longer than the 107
            # bytes of an address.
            connection.sock.connect(f"/proc/self/fd/{opened}")
        finally:
            os.close(opened)
        credentials = connection.sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        # The kernel's record of the process that listens, which nothing that it sends can change.
        if _CREDENTIALS.unpack(credentials)[1] != status.st_uid:
            raise OSError(errno.EPERM, "another user than its owner listens")
        return lambda: None

    def _check_process(
        self, process: tuple[int, int, int], server: tuple[str, int], client: tuple[str, int]
    ) -> None:
        pid, user, started_ns = process
        found, inode = self._sockets.find_socket(server, client)
        if found != user or not self._sockets.has_socket(pid, inode):
            raise OSError(errno.EPERM, f"another process than {pid} of user {user} answered")
        if self._files.started_ns(pid) != started_ns:
            raise OSError(errno.EPERM, f"process {pid} was started after it was on a GPU")


def format_endpoint(*endpoint: int | str) -> str:
    """Return the name of a worker server for messages: its path, or its port and process."""
    if isinstance(endpoint[0], int):
        return f"{_LOOPBACK}:{endpoint[0]} of process {endpoint[1]}"
    return printable("/".join(str(part) for part in endpoint if part != ""))
