"""Programs of this project forked from a process that has imported them.

Importing a collector takes a second of CPU time, and tests of crashes start dozens. A forked program has
its own session, environment and directory, and ends with its parent, as one that the demo starts.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import cast

from railscope.child_process import end_with_parent
from railscope.cli import main
from railscope_simulator.demo.process import Program

ROOT = Path(__file__).parents[2]
_MODULES = {
    "agent": ["railscope_agent.commands.run"],
    "simulate": ["railscope_simulator.cli"],
    "collector": ["railscope_collector.commands.administration", "sqlalchemy.dialects.sqlite"],
}
"""Modules to import, by the first argument of `railscope`."""
_MAX_REQUEST_BYTES = 1 << 20


class ForkedProgram(Program):
    """A program like `Program`, forked in place of started."""

    async def start(self, directory: Path) -> None:
        """Fork the process."""
        server = _server(self._arguments[0])
        process = await server.fork(directory, self._arguments, self._environment)
        self._process = cast("asyncio.subprocess.Process", process)
        self._reading = asyncio.create_task(self._read(self._process))


class ForkedProcess:
    """The part of `asyncio.subprocess.Process` that `Program` uses."""

    def __init__(self, pid: int, stderr: asyncio.StreamReader, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self.stderr = stderr
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """Exit status, or the negative number of a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Request the process to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """A process that has imported a program; it ends with this one, because its socket does."""

    def __init__(self, kind: str) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join(
            [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *_MODULES[kind]],
                stdin=other,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": paths},
            )
        atexit.register(self._stop)

    async def fork(
        self, directory: Path, arguments: list[str], environment: dict[str, str]
    ) -> ForkedProcess:
        """Fork a program; return it when it has a process id."""
        request = json.dumps([str(directory), arguments, environment]).encode()
        (log, stderr), (status, reported) = os.pipe(), os.pipe()
        socket.send_fds(self._socket, [request], [stderr, reported])
        for descriptor in (stderr, reported):
            os.close(descriptor)
        log_lines, status_lines = await _lines_of(log), await _lines_of(status)
        pid = int(await status_lines.readline())

        async def ended() -> int:
            return int(await status_lines.read())

        return ForkedProcess(pid, log_lines, asyncio.ensure_future(ended()))

    def _stop(self) -> None:
        self._socket.close()
        self._process.wait()


async def _lines_of(descriptor: int) -> asyncio.StreamReader:
    """Return a reader of a pipe, which is closed at its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


@cache
def _server(kind: str) -> _Server:
    return _Server(kind)


def _serve(requests: socket.socket) -> None:
    """Fork for each request; return in the forked process, which is then the program."""
    server = os.getpid()
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 2)
        if not request:
            sys.exit()
        if os.fork() == 0:
            _watch(server, json.loads(request), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watch(
    server: int, request: tuple[str, list[str], dict[str, str]], stderr: int, status: int
) -> None:
    """Fork the program and report its process id and its exit status; return in the program."""
    end_with_parent(server)
    watcher = os.getpid()
    program = os.fork()
    if program:
        os.close(stderr)
        os.write(status, b"%d\n" % program)
        _, outcome = os.waitpid(program, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(outcome))
        os._exit(0)
    os.setsid()
    end_with_parent(watcher)
    directory, arguments, environment = request
    os.dup2(stderr, sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for descriptor in (stderr, status):
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["railscope", *arguments]


if __name__ == "__main__":
    for _module in sys.argv[1:]:
        importlib.import_module(_module)
    gc.freeze()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as _requests:
        _serve(_requests)
    main()
