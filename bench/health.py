"""`python -m bench.health`: time of `railscope health`, for which a prolog waits.

An agent that replays a capture answers on its socket. The time of the command includes the start of the interpreter; that of an
interpreter that does nothing, on the same machine, gives the ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Aim, BenchReport, benchmark, start_agent, wall_seconds

CAPTURE = Path(__file__).parents[1] / "tests/captures/lost-gpu"
LIMIT = Aim("<=", 200, " ms")


@benchmark("Health for schedulers", full=50, quick=3)
def main(report: BenchReport, runs: int, directory: Path) -> None:
    """Measure the command with an agent and without one."""
    with start_agent(directory, "railscope", "agent", "run", "--replay", str(CAPTURE)):
        (socket,) = directory.glob("*/claims.sock")
        health = [sys.executable, "-m", "railscope", "health", "--socket"]
        interpreter = run_seconds([sys.executable, "-c", "pass"], runs)
        for name, command in (
            ("with an agent", [*health, str(socket)]),
            ("for a job, with an agent", [*health, str(socket), "--job", "1"]),
            ("without an agent", [*health, f"{socket}.none"]),
        ):
            seconds = run_seconds(command, runs)
            report.ratio(f"time, {name}", 1e3 * statistics.median(seconds), LIMIT)
            ratio = statistics.median(seconds) / statistics.median(interpreter)
            report.ratio(f"time, {name} / an interpreter that does nothing", ratio)
            late = sorted(seconds)[int(len(seconds) * 0.95)]
            report.figure(name, f"95 % within {1e3 * late:.1f} ms")


def run_seconds(command: Sequence[str], runs: int) -> list[float]:
    """Return the wall-clock time of each run of a command."""

    def run() -> None:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - ours

    return [wall_seconds(run) for _ in range(runs)]


if __name__ == "__main__":
    main()
