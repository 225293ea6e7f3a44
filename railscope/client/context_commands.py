"""Commands that store servers by name: `railscope context`."""

from __future__ import annotations

import json
from typing import Any

import click

from railscope.client import contexts
from railscope.client.columns import columns
from railscope.client.commands import ClientCommand, json_option, server_options, table_text
from railscope.client.connection import ClientError

_COLUMNS = columns("""
    USED        used        text
    NAME        name        name
    SERVER      server      text
    TOKEN_FILE  token_file  text
""")


@click.group()
def context() -> None:
    """Store servers by name, so that a URL is typed once.

    The file is $XDG_CONFIG_HOME/railscope/context.toml, or the file that RAILSCOPE_CONTEXT names. It contains
    the paths of credentials, not the credentials.
    """


@context.command(cls=ClientCommand)
@json_option
def show(*, as_json: bool) -> None:
    """List the contexts; `*` marks the one in use."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    rows = [
        {
            "used": "*" if name == found.current else None,
            "name": name,
            "server": server.collector or f"agent {server.agent}",
            "token_file": server.token_file or None,
        }
        for name, server in sorted(found.contexts.items())
    ]
    if as_json:
        click.echo(json.dumps({"file": str(path), "contexts": rows}, indent=1))
        return
    click.echo(f"{path}\n{table_text(_COLUMNS, rows, wide=True)}")


@context.command(name="set", cls=ClientCommand)
@click.argument("name")
@server_options
def set_context(name: str, **options: Any) -> None:
    """Store the context NAME, and use it if it is the first server."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    found.contexts[name] = contexts.ServerContext(**options)
    found.current = found.current or name
    contexts.write_contexts(path, found)
    click.echo(f"context {name} stored in {path}; in use: {found.current}")


@context.command(cls=ClientCommand)
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    if name not in found.contexts:
        message = f"unknown context {name!r}: expected one of {', '.join(sorted(found.contexts)) or '(none)'} in {path}"
        raise ClientError(message)
    found.current = name
    contexts.write_contexts(path, found)
    click.echo(f"context in use: {name}")
