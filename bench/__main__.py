"""`python -m bench`: run every benchmark, one after the other."""

from __future__ import annotations

import subprocess
import sys

import click

BENCHES = ("agent", "diagnosis", "collector")


@click.command()
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
def main(*, quick: bool) -> None:
    """Run all benchmarks; exit status 1 if one fails."""
    options = ["--quick"] if quick else []
    failed = []
    for name in BENCHES:
        click.echo(f"\npython -m bench.{name}\n")
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=False)  # noqa: S603 - ours
        if done.returncode:
            failed.append(name)
    if failed:
        message = f"benchmarks failed: {', '.join(failed)}"
        raise click.ClickException(message)


if __name__ == "__main__":
    main()
