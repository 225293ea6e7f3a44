"""`railscope bill`: what tenants had and what that costs."""

from __future__ import annotations

import click

from collector.jobs.command import import_jobs


@click.group()
def bill() -> None:
    """Work out what tenants had of the GPUs."""


bill.add_command(import_jobs)
