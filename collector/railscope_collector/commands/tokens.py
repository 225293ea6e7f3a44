"""`railscope collector token`: tokens of nodes, programs and people."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from railscope import convert_errors, timestamps
from railscope_collector.access import credentials, node_tokens
from railscope_collector.access.tokens_file import TokensFileError, format_entry, section_name
from railscope_collector.commands import config_option, load_settings


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
    type=click.Path(path_type=Path),
    help="File of the token of NAME; with --nodes, directory of the token files NODE.token. Only their owner may read them.",
)
@click.option(
    "--tokens-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --output: tokens file that gets the entries. Default: that of the settings.",
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

    With --output, write the token to this file, and add its line to the tokens file.

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
    if nodes_file or revoke_unlisted or renew:
        message = "--nodes, --revoke-unlisted, --renew: expected no NAME"
        raise click.UsageError(message)
    if tokens_file and not output:
        message = "--tokens-file: expected --output as well"
        raise click.UsageError(message)
    if not all(map(credentials.is_name, (name, *([tenant] if tenant else [])))):
        message = "invalid name: expected printable text in Unicode NFC"
        raise click.UsageError(message)
    holder = credentials.Credential(
        name, credentials.Role(role), tenant, max_authority or credentials.MAX_AUTHORITY
    )
    if output:
        file = tokens_file or Path(load_settings(config).tokens_file)
        with convert_errors((TokensFileError, OSError), click.ClickException):
            node_tokens.create_token_file(holder, until_ns, output, file)
        click.echo(f"token of {name} written to {output}; entry added to {file}")
        return
    new_token = credentials.generate_token()
    click.echo(f"token (for {name} only): {new_token}")
    click.echo(f"line for the tokens file, section [{section_name(holder)}]:")
    key = credentials.CredentialKey("token", credentials.digest_token(new_token))
    click.echo(format_entry(name, {key: credentials.CredentialEntry(holder, until_ns)}))


def _create_node_tokens(
    nodes_file: Path,
    output: Path,
    tokens_file: Path,
    options: node_tokens.NodeTokenOptions,
    now_ns: int,
) -> None:
    failures = (TokensFileError, UnicodeDecodeError, OSError)
    with convert_errors(failures, click.ClickException):
        with convert_errors(TokensFileError, TokensFileError, f"{nodes_file}: "):
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
