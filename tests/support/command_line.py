"""The command line as the console script runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import click
from click.testing import CliRunner, Result

from railscope.cli import main
from railscope.settings import CONFIGURATION_VARIABLE


class WholeProgram(click.Command):
    """The command line as the console script runs it, with its report of invalid settings."""

    def main(self, args: Sequence[str], **_: object) -> None:
        main(args)


def run(*arguments: str, **environment: str) -> Result:
    """Run a command in this process, which spares it the start of an interpreter."""
    cleared = dict.fromkeys(
        name
        for name in os.environ
        if name.startswith("RAILSCOPE_") and name != CONFIGURATION_VARIABLE
    )
    outcome = CliRunner().invoke(WholeProgram("railscope"), arguments, env=cleared | environment)
    if outcome.exception and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAILSCOPE_") or name == CONFIGURATION_VARIABLE
    }
    return subprocess.run(
        [sys.executable, "-m", "railscope", *arguments],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def refusal(outcome: Result) -> str:
    return refusal_line(outcome.exit_code, outcome.stdout, outcome.stderr)


def refusal_line(status: int, stdout: str, stderr: str) -> str:
    assert status == 2
    assert stdout == ""
    (line,) = stderr.splitlines()
    return line
