"""Commands of `railscope collector` for the administrator of a collector that exists: all but `run`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from collector import clock, tables
from collector.access import credentials, node_tokens
from collector.audit import ledger_check
from collector.commands import archive, collector_check
from collector.config import PREFIX, CollectorSettings
from collector.evidence import waiting_evidence
from collector.framelog.segment_files import accept_loss
from collector.ledger import database, database_copy
from railscope import convert_errors, service, settings, timestamps

config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings file (TOML). Default: {settings.CONFIGURATION}/collector.toml, if it exists.",
)


def load_settings(config: Path | None, flags: Mapping[str, Any] | None = None) -> CollectorSettings:
    """Return the settings from the file, the environment and the flags. Raises SettingsError."""
    file = config or settings.default_file("collector")
    return settings.load(CollectorSettings, file=file, prefix=PREFIX, flags=flags)


@click.command(name="check")
@config_option
def check_command(config: Path | None) -> None:
    """Validate settings, files, ledger and servers; exit status 1 if a check fails."""
    service.configure_logs("critical")  # the findings report it
    if not collector_check.check_collector(load_settings(config), click.echo):
        sys.exit(1)


@click.command()
@click.option(
    "--role",
    type=click.Choice([role.value for role in credentials.Role]),
    default="node",
    show_default=True,
    help="Access role of the token.",
)
@click.option(
    "--tenant", default="", help="Tenant whose data the token may read; only with --role tenant."
)
@click.option(
    "--days", type=click.IntRange(min=1), help="Days until the token expires. Default: never."
)
@click.option(
    "--max-authority",
    type=click.IntRange(1, credentials.MAX_AUTHORITY),
    help="Highest authority of claims that the node reports with this token: 1 process, 2 node plugin, "
    f"3 scheduler. Default: {credentials.MAX_AUTHORITY}.",
)
@click.option(
    "--nodes",
    "nodes_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Names of nodes, one per line: create the tokens of all of them.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --nodes: directory of the token files NODE.token, which only their owner may read.",
)
@click.option(
    "--tokens-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --nodes: tokens file that gets the entries. Default: that of the settings.",
)
@click.option(
    "--revoke-unlisted",
    is_flag=True,
    help="With --nodes: remove entries and token files of nodes that are not listed.",
)
@click.option(
    "--renew",
    is_flag=True,
    help="With --nodes: create another token for each node whose token has expired, or expires within "
    f"{node_tokens.RENEWAL_DAYS} days; also needs --days, with more days than these.",
)
@config_option
@click.argument("name", required=False)
def token(  # noqa: PLR0913, PLR0917 - flags
    role: str,
    tenant: str,
    days: int | None,
    max_authority: int | None,
    nodes_file: Path | None,
    output: Path | None,
    tokens_file: Path | None,
    revoke_unlisted: bool,  # noqa: FBT001 - flag
    renew: bool,  # noqa: FBT001 - flag
    config: Path | None,
    name: str | None,
) -> None:
    """Create a token for NAME, and the line for the tokens file. A node's NAME is that of the node.

    With --nodes and --output, create the tokens of many nodes, and add their entries to the tokens file. A node
    that has a token keeps it; entries of nodes that are not listed are reported, and removed with
    --revoke-unlisted. Invalid input changes nothing. Exit status 1 if a listed node has no valid token, as its token was
    revoked or has expired.
    """
    if bool(tenant) is not (role == credentials.Role.TENANT):
        message = "--tenant and --role tenant: expected both or neither"
        raise click.UsageError(message)
    if max_authority and role != credentials.Role.NODE:
        message = "--max-authority: expected --role node as well"
        raise click.UsageError(message)

    if renew and (days or 0) <= node_tokens.RENEWAL_DAYS:
        message = f"--renew: expected --days above {node_tokens.RENEWAL_DAYS} as well, else the new tokens never expire or are renewed by each run"
        raise click.UsageError(message)

    now_ns = time.time_ns() // timestamps.SECOND_NS * timestamps.SECOND_NS
    until_ns = now_ns + days * timestamps.DAY_NS if days else None
    if name is None:
        if nodes_file is None or output is None or role != credentials.Role.NODE:
            message = "expected NAME, or --nodes and --output with --role node"
            raise click.UsageError(message)
        file = tokens_file or Path(load_settings(config).tokens_file)
        options = node_tokens.NodeTokenOptions(until_ns, max_authority, renew, revoke_unlisted)
        _create_node_tokens(nodes_file, output, file, options, now_ns)
        return
    if nodes_file or output or tokens_file or revoke_unlisted or renew:
        message = "--nodes, --output, --tokens-file, --revoke-unlisted, --renew: expected no NAME"
        raise click.UsageError(message)
    if not all(map(credentials.is_name, (name, *([tenant] if tenant else [])))):
        message = "invalid name: expected printable text in Unicode NFC"
        raise click.UsageError(message)
    new_token = credentials.generate_token()
    click.echo(f"token (for {name} only): {new_token}")
    holder = credentials.Credential(
        name, credentials.Role(role), tenant, max_authority or credentials.MAX_AUTHORITY
    )
    click.echo(f"line for the tokens file, section [{credentials.section_name(holder)}]:")
    key = credentials.CredentialKey("token", credentials.digest_token(new_token))
    click.echo(credentials.format_entry(name, {key: credentials.CredentialEntry(holder, until_ns)}))


def _create_node_tokens(
    nodes_file: Path,
    output: Path,
    tokens_file: Path,
    options: node_tokens.NodeTokenOptions,
    now_ns: int,
) -> None:
    failures = (credentials.TokensFileError, UnicodeDecodeError, OSError)
    with convert_errors(failures, click.ClickException):
        with convert_errors(
            credentials.TokensFileError, credentials.TokensFileError, f"{nodes_file}: "
        ):
            names = node_tokens.parse_node_names(nodes_file.read_text(encoding="utf-8"))
        outcome = node_tokens.create_node_tokens(names, output, tokens_file, options, now_ns)
    renewed = f"; renewed: {len(outcome.renewed)}" if options.is_renewing else ""
    counts = f"{renewed}; kept: {len(outcome.existing)}"
    click.echo(f"created: {len(outcome.created)} tokens in {output}{counts}")
    for name in outcome.without_file:
        click.echo(f"{name}: kept its entry in {tokens_file}, whose token is not in {output}")
    for name in outcome.unlisted:
        state = "removed" if options.is_revoking else "kept; fix: --revoke-unlisted removes it"
        click.echo(f"{name}: not in {nodes_file}: {state}")
    has_invalid = False
    for name, until_ns in outcome.until_ns.items():
        is_expired = until_ns <= now_ns
        end = f"{'expired' if is_expired else 'expires'} at {timestamps.format_timestamp(until_ns)}"
        if name in outcome.renewed:
            click.echo(f"{name}: renewed; its former token {end}")
        else:
            has_invalid = has_invalid or is_expired
            click.echo(
                f"{name}: its token {end}; fix: --renew --days DAYS creates another one",
                err=is_expired,
            )
    for name in outcome.without_entry:
        file = output / (name + node_tokens.SUFFIX)
        message = f"{name}: revoked: the token in {file} has no entry in {tokens_file}; fix: remove the node from {nodes_file}, or delete the file for a new token"
        click.echo(message, err=True)
    if has_invalid or outcome.without_entry:
        sys.exit(1)


@click.command(name="accept-loss")
@config_option
@click.confirmation_option(prompt="Lost files stay lost once the collector starts again. Continue?")
def accept_loss_command(config: Path | None) -> None:
    """Let the next start continue without files that were lost; run it while no collector runs."""
    directory = service.state_directory(load_settings(config))
    lines = list(accept_loss(directory, waiting_evidence.compare_files))
    for line in lines:
        click.echo(line)
    click.echo(
        "accepted: the next start continues without "
        f"{'this file' if len(lines) == 1 else f'{len(lines)} files'}"
    )


@click.command(name="accept-clock")
@config_option
@click.confirmation_option(prompt="Is the wall clock of this machine correct now?")
def accept_clock_command(config: Path | None) -> None:
    """Make the running collector accept the current wall clock after it was found suspect, or while no node confirms it."""
    directory = service.state_directory(load_settings(config))
    try:
        state = clock.read_state(directory)
    except clock.ClockFileError as error:
        message = f"{error}; fix: restore the file, or run `railscope collector accept-loss`"
        raise click.ClickException(message) from error
    if state is None or not state.hold_reason:
        message = "nothing to accept: the clock is neither suspect nor unconfirmed"
        raise click.ClickException(message)
    (directory / clock.ACCEPTED_FILE).touch()
    click.echo(
        "accepted; the running collector applies it within seconds; it was suspect or unconfirmed: "
        f"{state.hold_reason}"
    )


@click.command(name="copy-database")
@config_option
@click.option(
    "--from",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"SQLite file to copy. Default: {database.FILE} in the state directory.",
)
def copy_database_command(config: Path | None, file: Path | None) -> None:
    """Copy the ledger of a stopped collector from SQLite to the empty PostgreSQL database of `ledger.url`.

    Evidence, ledger, billing and audit records are copied in one transaction, read back, compared by number and digest
    of the rows of each table, and checked as by `railscope audit verify --ledger`. If that fails, or is interrupted,
    the PostgreSQL database stays empty. No row of the file is changed.
    """
    current = load_settings(config)
    directory = service.state_directory(current)
    failures = (database.UnusableLedgerError, settings.SettingsError)
    with convert_errors(failures, click.ClickException):
        url = database.ledger_url(current.ledger, directory)
        path = (file or directory / database.FILE).absolute()
        lock = service.lock_state_directory(
            directory
        )  # first: opening a ledger adds missing tables
        try:
            source = database.Database(f"sqlite:///{path}", tables.metadata, make=False)
            with contextlib.closing(source):
                copy = database_copy.copy_database(
                    source,
                    url,
                    tables.metadata,
                    ledger_check.check_outbox,
                    lambda table: click.echo(str(table)),
                )
        finally:
            os.close(lock)
        copy.close()
    click.echo(f"copied {source.name} to {copy.name}")


@click.command(name="sample-config")
def sample_config() -> None:
    """Print a commented settings file with every setting at its default."""
    text = settings.sample(CollectorSettings, "Settings of the Railscope collector.")
    click.echo(text, nl=False)


COMMANDS = (
    archive.archive_group, check_command, token, accept_loss_command, accept_clock_command, copy_database_command,
    sample_config,
)  # fmt: skip
