"""`railscope bill`: use of the GPUs by tenants, and its cost."""

from __future__ import annotations

import click

from collector.commands.decide import (
    accept_copy_command,
    adjust_command,
    credit_command,
    opening_command,
    void_command,
)
from collector.commands.demo import demo
from collector.commands.export import export_command
from collector.commands.import_jobs import import_jobs
from collector.commands.overlaps import overlaps_command
from collector.commands.period import (
    close_command,
    list_command,
    preview_command,
    reconcile_command,
    statement_command,
)
from collector.commands.prices import prices
from collector.commands.review import accept_command, reject_command, review_command


@click.group()
def bill() -> None:
    """Meter and bill the use of GPUs by tenants."""


for command in (
    accept_command, accept_copy_command, adjust_command, close_command, credit_command, demo,
    export_command, import_jobs, list_command, opening_command, overlaps_command, prices,
    preview_command, reconcile_command, reject_command, review_command, statement_command,
    void_command,
):  # fmt: skip
    bill.add_command(command)
