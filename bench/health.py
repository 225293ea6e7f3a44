"""`python -m bench.health`: time of `railscope health`, which a prolog waits for.

An agent that replays a capture answers on its socket. The time of the command includes the start of the interpreter;
that of an interpreter that does nothing, on the same machine, gives the ratio.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

CAPTURES = Path(__file__).parents[1] / "tests/captures"
LIMIT_SECONDS = 0.2
START_SECONDS = 30.0
_MS = 1e3


def run_seconds(command: Sequence[str], runs: int) -> list[float]:
    """Return the wall-clock time of each run of a command."""
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - ours
        found.append(time.perf_counter() - started)
    return found


@click.command()
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
@click.option(
    "--capture", default="lost-gpu", show_default=True, help="Capture that the agent replays."
)
def main(*, quick: bool, capture: str) -> None:
    """Measure the command with an agent and without one."""
    runs = 3 if quick else 50
    python = [sys.executable, "-m", "railscope"]
    with tempfile.TemporaryDirectory() as directory:
        options = ["--listen", "127.0.0.1:0", "--state-directory", directory]
        command = [*python, "agent", "run", "--replay", str(CAPTURES / capture), *options]
        path = f"{directory}/claims.sock"
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - ours
        try:
            until = time.monotonic() + START_SECONDS
            while not os.path.exists(path) and time.monotonic() < until:  # noqa: PTH110 - a socket
                time.sleep(0.05)
            health = [*python, "health", "--socket"]
            rows = {
                "interpreter alone": [sys.executable, "-c", "pass"],
                "with an agent": [*health, path],
                "for a job, with an agent": [*health, path, "--job", "1"],
                "without an agent": [*health, f"{path}.none"],
            }
            times = {name: sorted(run_seconds(each, runs)) for name, each in rows.items()}
        finally:
            agent.terminate()
            agent.wait()
    base = median(times["interpreter alone"])
    for name, seconds in times.items():
        middle, late = median(seconds), seconds[int(len(seconds) * 0.95)]
        click.echo(
            f"{name:26} median {middle * _MS:6.1f} ms, 95 % {late * _MS:6.1f} ms,"
            f" {middle / base:5.1f} interpreters, {middle / LIMIT_SECONDS:5.2f} of the limit of 200 ms"
        )


if __name__ == "__main__":
    main()
