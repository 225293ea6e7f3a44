"""Connections to NCCL's RAS subsystem in processes of this node, and the facts about them that a query depends on.

Every process of NCCL listens on the same loopback port, and the kernel selects the one that accepts a connection. The client
finds it by the accepted socket before it sends a query: no process is queried that the caller did not select, and an answer
is that of a known process. Only processes of one user can share a port, so another user may have it.

Tenants control these processes: everything has one deadline, answers are bounded, and nothing that they send is used
beyond its parser. Source: NVIDIA/nccl src/ras/client_support.cc.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import msgspec

from railscope.capture import Json
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives import CollectiveFormatError, ras_answers, ras_report
from railscope_agent.host import tcp_sockets
from railscope_agent.host.files import RootedFiles

NCCL_RAS = "nccl_ras"
MAX_ANSWER_BYTES = 16 << 20
"""Some 28,000 ranks over all communicators; decoded, it takes three times as much."""
MAX_LINE_BYTES = 1024
MAX_EVENT_BYTES = 64 << 10
MAX_MONITORS, MAX_PACKAGES = 16, 16_384
MAX_CONNECTIONS = 16
"""Connections per address until a selected process accepts one; of eight processes, all had accepted one after 16."""
ADDRESSES = ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
"""Addresses of `localhost`: NCCL listens on the first one that its resolver returns."""
PROTOCOLS = frozenset({2})
ANSWERED, UNREACHABLE, PROTOCOL = "answered", "unreachable", "protocol"
TIMEOUT, TOO_LARGE, MALFORMED = "timeout", "too_large", "malformed"
OTHER_USER, OTHER_PROCESS = "user", "process"
_LIBRARY = re.compile(
    rb"^\S+ \S+ \S+ \S+ \S+ +(/.*/libnccl\.so(?:\.(\d[\d.]{0,31}))?)(?: \(deleted\))?$",
    re.MULTILINE,
)
_WHEEL = re.compile(r"nvidia_nccl_cu\d{1,3}-(\d{1,3}(?:\.\d{1,3}){1,3})\.dist-info")
_WHEEL_PATH = re.compile(r"(/.{1,1024})/nvidia/nccl/lib/libnccl\.so\.2")
_WHOLE_VERSION = re.compile(rb"\d{1,3}(?:\.\d{1,3}){2,3}")
_SERVER = re.compile(rb"SERVER PROTOCOL (\d{1,9})")


class NcclProcess(msgspec.Struct, frozen=True):
    """A process that has mapped NCCL's library: version, and start on the boot clock.

    `version` is empty if neither the name of the library nor the package around it contains it.
    """

    version: str
    started_ns: int
    has_same_network: bool


class RasAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a query or a poll: the process that answered, 0 if none did, and what became of it.

    `state` is answered, unreachable, user, protocol, timeout, too_large or malformed.
    """

    state: str
    pid: int = 0
    report: ras_report.RasReport | None = None
    dead: list[ras_report.ReportedPeer] = []


class _RasError(Exception):
    """End of a connection, with the state of its result."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class _RasConnection:
    """One connection with its deadline on the monotonic clock."""

    def __init__(
        self, connected: socket.socket, deadline: float, clock: Callable[[], float]
    ) -> None:
        self.socket = connected
        self._deadline = deadline
        self._clock = clock
        self._received = b""

    def _set_timeout(self) -> None:
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise TimeoutError
        self.socket.settimeout(remaining)

    def connect(self, address: tuple[str, int]) -> None:
        """Connect to a process."""
        self._set_timeout()
        self.socket.connect(address)

    def send(self, line: str) -> None:
        """Send a line."""
        self._set_timeout()
        self.socket.sendall(f"{line}\n".encode())

    def read_line(self) -> bytes:
        """Return the next line without its end."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_LINE_BYTES:
                raise _RasError(PROTOCOL)
            self._set_timeout()
            part = self.socket.recv(MAX_LINE_BYTES)
            if not part:
                raise _RasError(MALFORMED)
            self._received += part
        line, self._received = self._received[:end], self._received[end + 1 :]
        return line.rstrip(b"\r")

    def request(self, line: str) -> bytes:
        """Send a line, and return the line that answers it."""
        self.send(line)
        return self.read_line()

    def read_all(self) -> bytes:
        """Return everything until the server closes the connection."""
        content = bytearray(self._received)
        while True:
            self._set_timeout()
            part = self.socket.recv(1 << 18)
            if not part:
                return bytes(content)
            content += part
            if len(content) > MAX_ANSWER_BYTES:
                raise _RasError(TOO_LARGE)

    @property
    def received(self) -> bytes:
        """Content behind the last line."""
        return self._received


@dataclass(slots=True)
class _Monitor:
    connected: socket.socket
    content: bytes


class RasCalls:
    """The host interface "nccl_ras". Without `live`, there are no processes."""

    def __init__(
        self, files: RootedFiles, *, live: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files, self._sockets = files, tcp_sockets.TcpSockets(files)
        self._live = live
        self._clock = clock
        self._monitors: dict[int, _Monitor] = {}
        self._functions: dict[str, Callable[..., object]] = {
            "process": self._process,
            "query": self._query,
            "events": self._events,
        }

    def call(self, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError.

        nccl_ras.process(pid)                             NcclProcess; None without NCCL's library
        nccl_ras.query(port, timeout_ms, user, *pids)     RasAnswer of one of these processes
        nccl_ras.events(port, timeout_ms, user, *pids)    processes that MONITOR reported as dead since the last call
        """
        if not self._live:
            raise OSError(errno.ENODEV, "processes are not available in a copied tree")
        return msgspec.to_builtins(self._functions[function](*arguments))

    def close(self) -> None:
        """Close the connections of MONITOR."""
        for monitor in self._monitors.values():
            monitor.connected.close()
        self._monitors.clear()

    def _process(self, pid: int) -> NcclProcess | None:
        match = _LIBRARY.search(self._files.read(f"/proc/{pid}/maps"))
        if match is None:
            return None
        version = match[2] or b""
        # A library named libnccl.so.2 has only its major version in its name.
        if not _WHOLE_VERSION.fullmatch(version):
            version = self._wheel_version(pid, match[1].decode(errors="surrogateescape"))
        ticks = self._files.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19]
        return NcclProcess(
            version.decode(),
            int(ticks) * SECOND_NS // os.sysconf("SC_CLK_TCK"),
            self._network(str(pid)) == self._network("self"),
        )

    def _network(self, pid: str) -> str:
        return os.readlink(self._files.real(f"/proc/{pid}/ns/net"))  # noqa: PTH115 - plain text paths

    def _wheel_version(self, pid: int, library: str) -> bytes:
        """Return the version in the name of the package's directory, beside the directory of the library."""
        match = _WHEEL_PATH.fullmatch(library)
        if match is None or self._is_on_fuse(pid, match[1]):
            return b""
        try:
            # Bounded: the directory is the tenant's, and may have any number of entries.
            names = islice(
                os.scandir(self._files.real(f"/proc/{pid}/root{match[1]}")), MAX_PACKAGES
            )
            versions = {found[1] for entry in names if (found := _WHEEL.fullmatch(entry.name))}
        except OSError:
            return b""  # a version that is not known is not queried
        # Two packages in one directory: it is unknown which of them the library is of.
        return versions.pop().encode() if len(versions) == 1 else b""

    def _is_on_fuse(self, pid: int, directory: str) -> bool:
        """True if a program of the tenant may serve the directory: listing it could block."""
        longest = b"", b""
        for line in self._files.read(f"/proc/{pid}/mountinfo").splitlines():
            fields = line.split()
            mounted_at, kind = _unescape(fields[4]), fields[fields.index(b"-") + 1]
            if f"{directory}/".encode(errors="surrogateescape").startswith(
                mounted_at.rstrip(b"/") + b"/"
            ):
                # Mounts nest: the innermost one has the file.
                longest = max(longest, (mounted_at, kind), key=lambda mount: len(mount[0]))
        return longest[1].startswith(b"fuse") or not longest[1]

    def _query(self, port: int, timeout_ms: int, user: int, *pids: int) -> RasAnswer:
        deadline = self._clock() + timeout_ms / 1000

        def request(connection: _RasConnection, pid: int) -> RasAnswer:
            # The server collects for a shorter time than this client waits.
            connection.request(f"TIMEOUT {max(timeout_ms // 1000 - 1, 1)}")
            if connection.request("SET FORMAT json") != b"OK":
                return RasAnswer(PROTOCOL, pid)  # NCCL before 2.28.7
            connection.send("VERBOSE STATUS")
            try:
                report = ras_answers.parse_report(connection.read_all())
            except CollectiveFormatError:
                return RasAnswer(MALFORMED, pid)
            return RasAnswer(ANSWERED, pid, report)

        return self._with_process(port, deadline, user, pids, request)

    def _events(self, port: int, timeout_ms: int, user: int, *pids: int) -> RasAnswer:
        if pid := next((pid for pid in pids if pid in self._monitors), 0):
            return self._poll(pid)
        deadline = self._clock() + timeout_ms / 1000

        def begin(connection: _RasConnection, pid: int) -> RasAnswer:
            for request in ("SET FORMAT json", "MONITOR lifecycle"):
                if connection.request(request) != b"OK":
                    return RasAnswer(PROTOCOL, pid)
            # The oldest connection is closed: a new job is not without monitoring because of jobs whose end
            # was not noticed.
            if len(self._monitors) >= MAX_MONITORS:
                oldest = next(iter(self._monitors))
                self._monitors.pop(oldest).connected.close()
            # The caller closes the connection; this duplicate stays open to be polled.
            monitored = connection.socket.dup()
            monitored.settimeout(0)
            self._monitors[pid] = _Monitor(monitored, connection.received)
            return self._poll(pid)

        return self._with_process(port, deadline, user, pids, begin)

    def _poll(self, pid: int) -> RasAnswer:
        """Read what a monitored process has sent; end the connection with the process, or if it is malformed."""
        monitor = self._monitors[pid]
        state, is_open = ANSWERED, True
        try:
            while is_open and len(monitor.content) <= MAX_EVENT_BYTES:
                part = monitor.connected.recv(MAX_EVENT_BYTES)
                is_open = bool(part)
                monitor.content += part
        except BlockingIOError:
            pass  # everything has been read
        except OSError:
            is_open = False
        dead: list[ras_report.ReportedPeer] = []
        try:
            dead, monitor.content = ras_answers.parse_events(monitor.content)
        except CollectiveFormatError:
            state, is_open = MALFORMED, False
        if len(monitor.content) > MAX_EVENT_BYTES:
            state, is_open = TOO_LARGE, False
        if not is_open:
            self._monitors.pop(pid).connected.close()
        return RasAnswer(state, pid, dead=dead)

    def _with_process(
        self,
        port: int,
        deadline: float,
        user: int,
        pids: tuple[int, ...],
        use: Callable[[_RasConnection, int], RasAnswer],
    ) -> RasAnswer:
        """Connect until one of the processes accepts, and use that connection."""
        state = UNREACHABLE
        for family, address in ADDRESSES:
            users = set(self._sockets.listening_users(family, address, port))
            if user not in users:
                state = OTHER_USER if users else state
                continue
            # The kernel chooses the process that accepts: another attempt may reach another one.
            for _ in range(MAX_CONNECTIONS):
                with socket.socket(family, socket.SOCK_STREAM) as connected:
                    connection = _RasConnection(connected, deadline, self._clock)
                    answer = self._try_process(connection, (address, port), pids, use)
                if answer.state == UNREACHABLE:
                    break  # it has ended since
                if answer.state != OTHER_PROCESS:
                    return answer
        return RasAnswer(state)

    def _try_process(
        self,
        connection: _RasConnection,
        address: tuple[str, int],
        pids: tuple[int, ...],
        use: Callable[[_RasConnection, int], RasAnswer],
    ) -> RasAnswer:
        """Connect once, and use the connection if one of the processes accepted it."""
        pid = 0
        try:
            connection.connect(address)
            # The first exchange also waits until the connection is accepted: only then a process has the
            # other end.
            match = _SERVER.fullmatch(connection.request("CLIENT PROTOCOL 2"))
            pid = self._accepting_process(connection.socket, pids)
            if match is None or int(match[1]) not in PROTOCOLS:
                return RasAnswer(PROTOCOL, pid)
            return use(connection, pid) if pid else RasAnswer(OTHER_PROCESS)
        except TimeoutError:
            return RasAnswer(TIMEOUT, pid)
        except _RasError as error:
            return RasAnswer(error.state, pid)
        except ConnectionRefusedError:
            return RasAnswer(UNREACHABLE)
        except OSError:  # reset by the process
            return RasAnswer(MALFORMED, pid)

    def _accepting_process(self, connected: socket.socket, pids: Iterable[int]) -> int:
        """Return the process that has the other end of a connection; 0 if it is none of these."""
        server, client = connected.getpeername()[:2], connected.getsockname()[:2]
        _, inode = self._sockets.find_socket(server, client)
        return next((pid for pid in pids if self._sockets.has_socket(pid, inode)), 0)


def _unescape(path: bytes) -> bytes:
    r"""Return a path of /proc/PID/mountinfo, which has a space as `\040` (proc(5))."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), path)
