"""Shell completion: by the table, without the modules of the commands, in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from railscope.cli import COLLECTOR_MODULES, COMPLETION_VARIABLE

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "deploy/completions"
SECONDS = 30


def completions(*arguments: str) -> list[str]:
    """Return what bash is offered for the last argument."""
    program = (
        "import sys; sys.argv = ['railscope']\n"
        "from railscope.cli import main\n"
        "try:\n    main()\n"
        f"finally:\n    assert not set(sys.modules) & {{*{sorted(COLLECTOR_MODULES)}, 'railscope_agent', 'railscope_collector'}}\n"
    )
    environment = {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(["railscope", *arguments]),
        "COMP_CWORD": str(len(arguments)),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["coll"], ["collector"]),
        (["collector", "to"], ["token"]),
        (["collector", "token", "--ma"], ["--max-authority"]),
        (["collector", "token", "--role", "o"], ["operator"]),
        (["collector", "run", "--config", ""], ["file,"]),
        (["agent", "once", "--root", ""], ["dir,"]),
        (["agent", "run", "--node", "a", "--collector", "b", "--no"], []),
        (["agent", "run", "--node", "a", "--collector", "b", "--collec"], ["--collector"]),
        (["collector", "run", "--no-a"], ["--no-allow-anonymous-read"]),
        (["bill", "-"], ["-h", "--help"]),
    ],
    ids=" ".join,
)
def test_completion_imports_no_module_of_a_command(arguments: list[str], offered: list[str]):
    assert sorted(completions(*arguments)) == sorted(offered)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with the command."""
    directory = tmp_path_factory.mktemp("bin")
    program = directory / "railscope"
    program.write_text(f"#!{sys.executable} -P\nfrom railscope.cli import main\n\nmain()\n")
    program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


@contextmanager
def terminal(path: str, *command: str) -> Iterator[int]:
    """A shell in a terminal of its own."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ |= {"PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PS1": "> "}
        os.execvp(command[0], command)  # noqa: S606 - a shell, in the terminal
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # which hangs up the shell
        os.waitpid(pid, 0)


def shows(descriptor: int, expected: str) -> bool:
    """Read until the terminal shows a text."""
    shown, end = b"", time.monotonic() + SECONDS
    while expected.encode() not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0))
        if not ready:
            raise AssertionError(shown.decode(errors="replace"))
        shown += os.read(descriptor, 4096)
    return True


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"source {SCRIPTS}/railscope.bash"),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"fpath=({SCRIPTS} $fpath); autoload -Uz compinit; compinit -u -D",
    ),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_options(shell: str, path: str):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing: install the Debian package {shell}")
    command, setup = SHELLS[shell]
    with terminal(path, *command) as descriptor:
        os.write(descriptor, f"{setup}; echo is-$((40 + 2))\n".encode())
        assert shows(descriptor, "is-42")
        os.write(descriptor, b"railscope coll\t")
        assert shows(descriptor, "collector ")
        os.write(descriptor, b"tok\t")
        assert shows(descriptor, "token ")
        os.write(descriptor, b"--max-au\t")
        assert shows(descriptor, "--max-authority ")
