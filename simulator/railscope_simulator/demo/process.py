"""A program of this project as a process: started, its log read, stopped by its own id.

It has a session of its own, so that it receives signals only through its parent, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railscope import child_process
from railscope_simulator.spec import SimulatorError

START_SECONDS = 120.0
STOP_SECONDS = 60.0
MAX_LINES = 2000


class ProgramError(SimulatorError, RuntimeError):
    """A program ended by itself or did not start; the message ends with its last log lines."""


async def run_to_end(
    arguments: list[str], directory: Path, environment: Mapping[str, str], *, is_quiet: bool = False
) -> int:
    """Run `python -m railscope <arguments>`; return its exit status."""
    output = asyncio.subprocess.DEVNULL if is_quiet else None
    process = await _start_process(arguments, directory, env=environment, stdout=output)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
            await process.wait()


async def _start_process(
    arguments: Sequence[str], directory: Path, module: str = "", **options: Any
) -> asyncio.subprocess.Process:
    # By its file: the packages may be those of another release, which has no such module.
    program = ("-m", module) if module else (child_process.__file__,)
    # -P: a directory in the working directory must not be imported as one of our packages.
    command = (sys.executable, "-P", *program, str(os.getpid()), *arguments)
    return await asyncio.create_subprocess_exec(
        *command, cwd=directory, start_new_session=True, **options
    )


class Program:
    """`python -m railscope <arguments>`, or another module with its parent's id and the arguments.

    The newest lines of its log are kept in memory.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        module: str = "",
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._module = module
        self._environment = dict(environment)
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, directory: Path) -> None:
        """Start the process."""
        self._process = await _start_process(
            self._arguments,
            directory,
            self._module,
            env=self._environment,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        while process.stderr is not None and (line := await process.stderr.readline()):
            self._lines.append(line.decode(errors="replace").rstrip())
            self._news.set()
        await process.wait()
        self._news.set()

    async def find_logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log. Raises ProgramError if it does not appear."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    # Before the search: a line that arrives meanwhile sets the event again, and is not
                    # missed.
                    self._news.clear()
                    if match := self.find(pattern):
                        return match
                    self.check_alive()
                    await self._news.wait()
        except TimeoutError:
            message = (
                f"starting {self.name} failed: expected {pattern!r} in its log: {self.log_tail()}"
            )
            raise ProgramError(message) from None

    def find(self, pattern: str) -> re.Match[str] | None:
        """Return the first match in the log so far."""
        return next(filter(None, (re.search(pattern, line) for line in self._lines)), None)

    def check_alive(self) -> None:
        """Raise ProgramError if the process has ended."""
        if self._process is None or self._process.returncode is not None:
            message = f"process {self.name} ended by itself: {self.log_tail()}"
            raise ProgramError(message)

    def log_tail(self, lines: int = 5) -> str:
        """Return the end of the log."""
        return "\n".join(list(self._lines)[-lines:]) or "its log is empty"

    @property
    def pid(self) -> int:
        """Return its process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process at once, without a clean stop."""
        self.signal(signal.SIGKILL)

    async def wait_for_end(self) -> int | None:
        """Wait for the end of the process and of its log; return its exit status."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        return self._process.returncode if self._process else None

    async def stop(self) -> None:
        """Request the process to stop; kill it after a timeout."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        await self.wait_for_end()
