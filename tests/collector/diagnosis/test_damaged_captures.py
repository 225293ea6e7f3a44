"""`railscope diagnose` on captures of which one is damaged, or has a wrong clock: the others are diagnosed."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from support.command_line import refusal, run

from railscope.capture import MAX_LINE_BYTES, Capture, CaptureMetadata, CaptureMoment
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.commands.diagnose import replay_captures
from railscope_collector.commands.node_clocks import NodeClocks, align_captures, find_captures

START_NS = 1_760_000_000 * SECOND_NS


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """On one core, all captures of these tests are replayed by one process."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def write_capture(
    directory: Path, node: str, *, start_ns: int = START_NS, seconds: int = 2
) -> Path:
    """Write the capture of a node without devices."""
    about = CaptureMetadata(node, "b", start_ns, 777 * SECOND_NS, seconds * SECOND_NS, "test")
    moments = tuple(CaptureMoment(at * SECOND_NS) for at in range(2))
    Capture(about, moments).write(directory / node)
    return directory / node


def diagnose(directory: Path) -> Result:
    return run("diagnose", "--captures", str(directory))


# Damaged lines and files


def test_each_damaged_capture_is_left_out_or_cut_alone(tmp_path: Path) -> None:
    """All in one directory, beside captures without damage."""
    damaged = {node: write_capture(tmp_path, node) / "timeline.jsonl" for node in "abcdef"}
    damaged["a"].write_text("[" * 200_000 + "\n")
    damaged["b"].write_text('{"t":0,"files":{"/a":' + "[" * 200_000 + "\n")
    with damaged["c"].open("a") as file:
        file.write("[]\n")
    damaged["d"].write_text("")
    os.truncate(damaged["e"], 1 << 40)
    damaged["f"].unlink()
    os.mkfifo(damaged["f"])
    write_capture(tmp_path, "late", start_ns=START_NS - 30 * DAY_NS)
    pipe = write_capture(tmp_path, "pipe") / "capture.toml"
    pipe.unlink()
    os.mkfifo(pipe)
    for node in ("x", "y"):
        write_capture(tmp_path, node)
    outcome = diagnose(tmp_path)
    assert (outcome.exit_code, outcome.stdout) == (0, "no incidents\n"), outcome.output
    lines = outcome.stderr.splitlines()
    assert all(line.startswith("Warning: ") for line in lines)
    for node, problem, result in (
        ("a", "damaged line 1: nested too deeply: expected an object", "the capture is left out"),
        ("b", "damaged line 1: nested too deeply: expected an object", "the capture is left out"),
        ("c", "damaged line 3: ", "the samples before it are used"),
        ("d", "empty file: expected", "the capture is left out"),
        ("e", f"damaged line 3: longer than {MAX_LINE_BYTES} bytes: expected", ""),
        ("f", "pipe: expected a regular file; ", ""),
    ):
        (line,) = (line for line in lines if str(damaged[node]) in line)
        assert f"{damaged[node]}: {problem}" in line
        assert line.endswith(result)
    (line,) = (line for line in lines if str(pipe) in line)
    assert f"{pipe}: pipe: expected a regular file; " in line
    (line,) = (line for line in lines if f"{tmp_path}/late" in line)
    assert (
        f"capture left out: {tmp_path}/late: 2025-09-09T08:53:20Z to 2025-09-09T08:53:22Z" in line
    )
    assert "the others, 2025-10-09T08:53:20Z to 2025-10-09T08:53:22Z; fix: " in line
    assert len(lines) == 8


@pytest.mark.parametrize("name", ["arrivals.csv", "agent.toml"])
def test_a_pipe_beside_the_captures_is_rejected(tmp_path: Path, name: str) -> None:
    write_capture(tmp_path, "a")
    os.mkfifo(tmp_path / name)
    line = refusal(diagnose(tmp_path))
    assert f"cannot read {tmp_path / name}: pipe: expected a regular file" in line


def test_invalid_settings_of_agents_are_one_line(tmp_path: Path) -> None:
    for node in ("a", "b"):
        write_capture(tmp_path, node)
    (tmp_path / "agent.toml").write_text("unheard_of = 1\n")
    line = refusal(diagnose(tmp_path))
    assert line.startswith("Error: cannot replay the captures: unknown key 'unheard_of'")


# Unexpected ends of a process


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("kill -KILL $$", "ended by signal 9 (Killed)"),
        pytest.param(
            "echo 'MemoryError' >&2; exit 1",
            "exit status 1: MemoryError",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "printf '\\001\\0\\0\\0x'; exit 0", "invalid frames: ", marks=pytest.mark.thorough
        ),
    ],
)
def test_a_capture_that_ends_its_process_unexpectedly_is_left_out_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, shown: str
) -> None:
    nodes = [write_capture(tmp_path, node) for node in ("guilty", "z")]
    program = tmp_path / "railscope"
    run_it = shlex.join([sys.executable, "-m", "railscope"])
    program.write_text(f'#!/bin/sh\ncase "$*" in */guilty*) {end};; esac\nexec {run_it} "$@"\n')
    program.chmod(0o755)
    envelopes = replay_captures(nodes, program=[str(program)])
    assert {envelope.node for envelope in envelopes} == {"z"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Warning: cannot replay {tmp_path}/guilty: {shown}")
    assert "the capture is left out" in line


REPORTING_PROGRAM = """\
#!{python}
# Python as it is started for a replay; the command line reports its process, and never ends by itself.
import os, runpy, signal, sys
import railscope.cli

def main(*_):
    with open({fifo!r}, "w") as fifo:
        fifo.write(str(os.getpid()))
    while True:
        signal.pause()

railscope.cli.main = main
module, *arguments = sys.argv[3:]
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__")
"""


def test_a_replay_ends_with_its_parent(tmp_path: Path) -> None:
    program, fifo = tmp_path / "python", tmp_path / "fifo"
    os.mkfifo(fifo)
    program.write_text(REPORTING_PROGRAM.format(python=sys.executable, fifo=str(fifo)))
    program.chmod(0o755)
    code = (
        f"import sys; sys.executable = {str(program)!r}; from pathlib import Path; "
        "from railscope_collector.commands.diagnose import replay_captures; replay_captures([Path('a')])"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        replay = int(fifo.read_text())
        descriptor = os.pidfd_open(replay)
        parent.terminate()
    try:
        is_ended = bool(select.select([descriptor], [], [], 60)[0])
        if not is_ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
    assert is_ended


# Clocks


def aligned_nodes(directory: Path, clocks: NodeClocks | None = None) -> list[str]:
    found = align_captures(find_captures(directory), clocks or NodeClocks())
    return [each.node for each in found]


def test_a_recording_that_is_long_does_not_excuse_a_wrong_clock(tmp_path: Path) -> None:
    for node, days in (("a", 0), ("b", 0), ("c", 5)):
        write_capture(tmp_path, node, start_ns=START_NS + days * DAY_NS, seconds=3 * 86_400)
    assert aligned_nodes(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("days", [-30, pytest.param(30, marks=pytest.mark.thorough)])
def test_arrivals_correct_a_wrong_clock(tmp_path: Path, days: int) -> None:
    offset_ns = days * DAY_NS
    write_capture(tmp_path, "a", start_ns=START_NS + offset_ns)
    write_capture(tmp_path, "b")
    rows = [
        f"{node},{START_NS + at * SECOND_NS + ahead_ns},{START_NS + at * SECOND_NS}\n"
        for at in range(3)
        for node, ahead_ns in (("a", offset_ns), ("b", 0))
    ]
    (tmp_path / "arrivals.csv").write_text("".join(rows))
    outcome = diagnose(tmp_path)
    assert (outcome.exit_code, outcome.stderr) == (0, ""), outcome.output


def test_arrivals_that_contradict_a_capture_leave_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("a", "b", "c"):
        write_capture(tmp_path, node)
    clocks = NodeClocks()
    clocks.add("c", START_NS - 90 * DAY_NS, START_NS)
    assert aligned_nodes(tmp_path, clocks) == ["a", "b"]
    assert "on the collector's clock" in capsys.readouterr().err
