"""`python -m tests.collector.diagnosis.score`: score of the diagnosis on random clusters."""

from __future__ import annotations

import shlex

import click

from railscope import convert_errors
from railscope_simulator.spec import SimulatorError
from tests.collector.diagnosis.score import score_scenarios, score_table, scoring


@click.command()
@click.option(
    "--seeds", default="0-4", show_default=True, help="Seeds of the scenarios, as A-B or A."
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    type=click.Choice(score_scenarios.CLASSES),
    help="Class of the scenarios; may be repeated.  [default: all]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of scenarios at the same time.",
)
@click.option(
    "--collectives",
    is_flag=True,
    help="Let training jobs leave records of their collectives, and score the diagnosis without them and with them.",
)
@click.option("--command", help="Program to score in place of railscope diagnose.")
def score(
    seeds: str, classes: tuple[str, ...], jobs: int, *, collectives: bool, command: str | None
) -> None:
    """Diagnose random clusters with and without faults, and compare the incidents with the truth.

    Standard error has a line for each scenario, standard output the table: precision and recall with their
    intervals of 95 %, the delay of detection, the share of faults whose cause has the highest confidence,
    and false positives of healthy clusters, with the goals beside.
    """
    program = shlex.split(command) if command else scoring.DIAGNOSE
    outcomes = []
    with convert_errors((SimulatorError, OSError), click.ClickException):
        for outcome in scoring.run_all(
            classes or score_scenarios.CLASSES,
            _seeds(seeds),
            jobs,
            program,
            collectives=collectives,
        ):
            click.echo(outcome.line(), err=True)
            outcomes.append(outcome)
    for has_collectives in (False, True) if collectives else (False,):
        if collectives:
            click.echo(f"{'with' if has_collectives else 'without'} collectives:")
        for line in score_table.table(
            [o for o in outcomes if o.has_collectives is has_collectives]
        ):
            click.echo(line)
    if any(outcome.problem for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _seeds(text: str) -> range:
    """Return the seeds A to B of `A-B`, or the seed `A`."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        message = f"invalid --seeds: {text!r}: expected A-B such as 0-9"
        raise click.UsageError(message)
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    score()
