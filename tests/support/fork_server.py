"""A process that forks for each call of a function: the modules are imported once."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 240


class ForkServer:
    """A program that runs `serve`; it ends with this process, which closes its input."""

    def __init__(self, *command: str) -> None:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        atexit.register(self._stop)

    def run(self, directory: str, *arguments: str) -> tuple[int, str]:
        """Call the function in a new process; return its exit status and its output.

        The process is killed after four minutes: its status is then the negative number of the signal.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([directory, *arguments]) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return status, (Path(directory) / "output").read_text()

    def _stop(self) -> None:
        self._process.communicate()


def serve(prepare: Callable[..., object], call: Callable[..., None]) -> None:
    """Call a function with the arguments of each line of the input, each time in a forked process.

    `prepare` receives the same arguments before, in this process.
    """
    for line in sys.stdin:
        arguments: list[str] = json.loads(line)
        prepare(*arguments)
        child = os.fork()
        if child == 0:
            os._exit(_call(call, arguments))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _call(call: Callable[..., None], arguments: list[str]) -> int:
    """Write all output to a file of the directory that is the first argument."""
    output = os.open(Path(arguments[0]) / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    signal.alarm(_PATIENCE_SECONDS)
    try:
        call(*arguments)
    except BaseException:  # noqa: BLE001 - this process ends here: its status is the result
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
