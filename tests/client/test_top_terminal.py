"""`railscope top` in a real terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.scripted_server import by_path, scripted_server
from test_top import documents

PATIENCE_SECONDS = 60
ENV = ("env", "-u", "LINES", "-u", "COLUMNS")
"""The size is that of the terminal, not that of the tests."""
PRINT_STATUS = '"$@"; echo "exit status $?"; read line'
"""tmux itself does not always have the exit status of a program that has ended."""


class TmuxTerminal:
    """A terminal of a tmux server of its own, with one program."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout

    def until(self, text: str, *options: str) -> list[str]:
        """Wait until the screen contains a text; return its lines, with their styles with `-e`."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in (screen := self.tmux("capture-pane", "-p", *options, "-t", "0")):
            assert time.monotonic() < end, f"expected {text!r} on the screen:\n{screen}"
            time.sleep(0.05)
        return screen.split("\n")

    def until_gone(self, text: str) -> None:
        """Wait until the screen does not contain a text."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text in self.tmux("capture-pane", "-p", "-t", "0"):
            assert time.monotonic() < end
            time.sleep(0.05)


@contextmanager
def terminal(directory: Path, columns: int, lines: int, *command: str) -> Iterator[TmuxTerminal]:
    opened = TmuxTerminal(directory / "tmux")
    size = ("-x", str(columns), "-y", str(lines))
    opened.tmux("new-session", "-d", *size, "sh", "-c", PRINT_STATUS, "sh", *command)
    try:
        yield opened
    finally:
        opened.tmux("kill-server")


@pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"
)
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 60)])
@pytest.mark.parametrize("variable", ["NO_COLOR=", "NO_COLOR=1"])
def test_top_fits_a_real_terminal(tmp_path: Path, columns: int, lines: int, variable: str):
    with scripted_server(by_path(documents())) as server:
        program = (
            *ENV,
            variable,
            sys.executable,
            "-m",
            "railscope",
            "top",
            "--collector",
            server.url,
        )
        with terminal(tmp_path, columns, lines, *program) as opened:
            opened.until("n2 ")
            screen = opened.until("q quit")
            assert "FAILED  nodes: 1 healthy, 1 failed" in screen[0]
            assert max(map(len, screen)) <= columns
            shown = [number for number, line in enumerate(screen) if line.strip()]
            assert "q quit" in screen[shown[-1]], "the keys are in the last line"
            assert lines - 2 <= shown[-1] + 1 <= lines
            opened.tmux("send-keys", "-t", "0", "Enter")
            opened.until("gpus of n1")
            opened.until("eth0")
            for key, shown_text in (("g", "eth1 down"), ("r", "PAUSING")):
                opened.tmux("send-keys", "-t", "0", key)
                assert max(map(len, opened.until(shown_text))) <= columns
            if variable == "NO_COLOR=1":  # the selected row is reversed
                styles = "\n".join(opened.until("7m", "-e"))
                assert not re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]", styles)
            opened.tmux("send-keys", "-t", "0", "?")
            opened.until("lost connection")
            opened.tmux("send-keys", "-t", "0", "Escape")
            opened.until_gone(
                "lost connection"
            )  # Escape and the next key are one key if they follow at once
            opened.tmux("resize-window", "-x", "60", "-y", "12")
            opened.until("rails")
            opened.tmux("send-keys", "-t", "0", "q" if columns == 80 else "C-c")
            opened.until("exit status 0")


@pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"
)
def test_a_terminal_without_cursor_control_gets_plain_text_again_and_again(tmp_path: Path):
    with scripted_server(by_path(documents())) as server:
        options = ("--interval", "0.5", "--collector", server.url)
        program = (*ENV, "TERM=dumb", sys.executable, "-m", "railscope", "top", *options)
        with terminal(tmp_path, 80, 60, *program) as opened:
            opened.until("FAILED")
            end = time.monotonic() + PATIENCE_SECONDS
            while "\n".join(opened.until("n2")).count("FAILED") < 2:
                assert time.monotonic() < end
                time.sleep(0.05)
