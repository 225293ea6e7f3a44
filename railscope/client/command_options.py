"""Options that the commands of the client share, and the server and the terminal that they select."""

from __future__ import annotations

import fnmatch
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import click

from railscope.client import (
    contexts,
    status as state,
    tables,
)
from railscope.client.connection import ClientError, ReadClient, ServerAddress

_Command = TypeVar("_Command", bound=Callable[..., Any])
UNKNOWN = int(state.OverallStatus.UNKNOWN)

SERVER_OPTIONS = (
    click.option(
        "--collector",
        default="",
        metavar="URL",
        help="Base URL of a collector. Default: the context in use, else a collector on this host.",
    ),
    click.option(
        "--agent",
        default="",
        metavar="URL",
        help="Base URL of an agent, to read one node without a collector.",
    ),
)
FILE_OPTIONS = (
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="File that contains a bearer token; other users must not be able to read it.",
    ),
    click.option(
        "--ca-file",
        default="",
        metavar="FILE",
        help="CA certificates (PEM) to verify the server. Default: those of the system.",
    ),
    click.option(
        "--certificate-file", default="", metavar="FILE", help="Client certificate (PEM)."
    ),
    click.option(
        "--key-file",
        default="",
        metavar="FILE",
        help="Key of the client certificate (PEM). Default: in the certificate's file.",
    ),
)
_CONTEXT_OPTIONS = (
    click.option("--context", default="", metavar="NAME", help="Context to use; `railscope context show` lists them."),
    click.option("--timeout-seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="Limit of one request."),
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
wide_option = click.option(
    "--wide", is_flag=True, help="Print all columns in full; lines may be long."
)
tenant_option = click.option(
    "--tenant", default="", metavar="PATTERN", help="Only of these tenants."
)
node_option = click.option(
    "--node", default="", metavar="PATTERN", help="Only of these nodes, such as gpu-*."
)


class ClientCommand(click.Command):
    """Command that exits with status 3 for every error: the state of the cluster is unknown then."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as error:
            error.show()
            sys.exit(UNKNOWN)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ClientError as error:
            click.echo(f"Error: {error.message}", err=True)
            sys.exit(UNKNOWN)


def state_option(*states: str) -> Callable[[_Command], _Command]:
    """Return the option that selects rows by state; a pattern that no state can match is an error."""

    def check(_: click.Context, option: click.Parameter, pattern: str) -> str:
        if pattern and not fnmatch.filter(states, pattern.lower()):
            message = f"{pattern!r}: expected one of {', '.join(states)}, or a pattern such as f*"
            raise click.BadParameter(message, param=option)
        return pattern.lower()

    return click.option(
        "--state",
        "of_state",
        default="",
        metavar="PATTERN",
        callback=check,
        help=f"Only in this state: {', '.join(states[:-1])} or {states[-1]}.",
    )


def name_argument(option: str) -> Callable[[_Command], _Command]:
    """Return the argument NAME, which has the meaning of an option and replaces its value."""

    def choose(context: click.Context, argument: click.Parameter, name: str) -> str:
        if name and context.params.get(option):
            message = f"{name!r}: expected either NAME or --{option}"
            raise click.BadParameter(message, param=argument)
        return name

    return click.argument("name", default="", metavar="[NAME]", callback=choose)


def add_options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options in this order."""

    def decorate(command: _Command) -> _Command:
        # Decorators are applied from the last one: so `--help` shows them in this order.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


connection_options = add_options(*SERVER_OPTIONS, *FILE_OPTIONS, *_CONTEXT_OPTIONS)
table_options = add_options(json_option, wide_option, connection_options)


def chosen_address(options: dict[str, Any]) -> ServerAddress:
    """Return the server that the options of a command select, or the context in use."""
    return contexts.choose_address(options, contexts.default_path())


def connect(address: ServerAddress) -> ReadClient:
    """Return a client whose connections are closed at the end of the command."""
    return click.get_current_context().with_resource(closing(ReadClient(address)))


def terminal_width() -> int:
    """Return the width of the terminal; 80 where the output is not a terminal."""
    return (
        shutil.get_terminal_size((tables.NARROW, 24)).columns
        if sys.stdout.isatty()
        else tables.NARROW
    )
