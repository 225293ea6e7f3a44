"""`railscope bill`: what tenants had and what that costs."""

from __future__ import annotations

import click

from collector.billing.command import demo, prices
from collector.jobs.command import import_jobs


@click.group()
def bill() -> None:
    """Work out what tenants had of the GPUs, and what it costs."""


for command in (demo, import_jobs, prices):
    bill.add_command(command)
