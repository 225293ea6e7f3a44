"""Token files, and their entries in the tokens file: one for each of many nodes, or that of one person or program.

A new token is written to `NODE.new`, its digest to the tokens file, and then the file is renamed to `NODE.token`. A run
that was interrupted is completed by the next one. A token file without an entry is therefore a revoked token, and never
gets an entry again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from railscope import durable_files, timestamps, untrusted_text
from railscope_collector.access import credentials
from railscope_collector.access.tokens_file import (
    TokensFileEdit,
    TokensFileError,
    format_entry,
    section_name,
)

SUFFIX, NEW_SUFFIX = ".token", ".new"
RENEWAL_DAYS = 30
"""Days before its expiry from which on a token is reported and renewed."""
_MAX_NAME_BYTES = 200
"""Maximum length of a node's name in UTF-8, so that the temporary name of its file is valid."""
_TOKEN = re.compile(r"[\x21-\x7e]+")
_Entries = Mapping[credentials.CredentialKey, credentials.CredentialEntry]


@dataclass(frozen=True, slots=True)
class NodeTokenOptions:
    """Options of the tokens of nodes."""

    until_ns: int | None = None
    """Expiry of new tokens; None for never."""
    max_authority: int | None = None
    """Limit of new tokens; None for that of the node's other tokens."""
    is_renewing: bool = False
    """Create another token for a node whose token has expired or expires soon."""
    is_revoking: bool = False
    """Remove entries and token files of nodes that are not listed."""


@dataclass(frozen=True, slots=True)
class NodeTokens:
    """Result of the creation of tokens: names of nodes."""

    created: tuple[str, ...]
    """Nodes with their first token."""
    renewed: tuple[str, ...]
    """Nodes with a further token; the former one stays valid until it expires."""
    existing: tuple[str, ...]
    """Other nodes whose token file and entry exist."""
    without_file: tuple[str, ...]
    """Nodes with an entry in the tokens file and no token file, such as a token created by hand: kept."""
    without_entry: tuple[str, ...]
    """Nodes whose token file has no entry: the token was revoked."""
    until_ns: Mapping[str, int]
    """Expiry of the tokens that have expired or expire soon, also of those that were renewed."""
    unlisted: tuple[str, ...]
    """Nodes with an entry that the list of nodes does not have."""


def parse_node_names(text: str) -> list[str]:
    """Parse names of nodes, one per line; a line that starts with `#` is a comment. Raises TokensFileError."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        if not _is_file_name(name):
            message = (
                f"line {number}: invalid node name {untrusted_text.quote_text(name)}: expected printable text in "
                f"Unicode NFC without a slash or a leading dot, at most {_MAX_NAME_BYTES} bytes"
            )
            raise TokensFileError(message)
        if name in lines:
            message = (
                f"line {number}: node {name} is also in line {lines[name]}: expected each node once"
            )
            raise TokensFileError(message)
        lines[name] = number
    if not lines:
        message = "no node: expected one name per line"
        raise TokensFileError(message)
    return list(lines)


def _is_file_name(name: str) -> bool:
    is_short = len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
    return credentials.is_name(name) and is_short and "/" not in name and not name.startswith(".")


def create_node_tokens(
    names: Sequence[str],
    directory: Path,
    tokens_file: Path,
    options: NodeTokenOptions,
    now_ns: int,
) -> NodeTokens:
    """Create the missing tokens of nodes, and their entries. Raises TokensFileError before any change, and OSError."""
    edit = TokensFileEdit.begin(tokens_file)
    by_node: dict[str, dict[credentials.CredentialKey, credentials.CredentialEntry]] = {}
    for key, entry in edit.credentials.entries.items():
        if entry.credential.role is credentials.Role.NODE:
            by_node.setdefault(entry.credential.name, {})[key] = entry
    pending = _read_keys(directory, names, NEW_SUFFIX)
    # The entry was written and the file not renamed: the interrupted run is completed.
    published = {name: key for name, key in pending.items() if key in by_node.get(name, {})}
    stored = _read_keys(directory, names, SUFFIX) | published
    until_ns = {
        name: end
        for name in names
        if (end := _expiry_ns(by_node.get(name, {}), stored.get(name))) is not None
        and end < now_ns + RENEWAL_DAYS * timestamps.DAY_NS
    }
    renewed = tuple(until_ns) if options.is_renewing else ()
    created = tuple(name for name in names if name not in stored and name not in by_node)
    tokens = {name: credentials.generate_token() for name in (*created, *renewed)}
    unlisted = sorted(by_node.keys() - set(names))
    removed = unlisted if options.is_revoking else []
    lines = "".join(
        f"{_format_line(name, token, by_node.get(name, {}), options, now_ns)}\n"
        for name, token in tokens.items()
    )
    changed = [*removed, *renewed]
    edit.change("nodes", lines, changed)
    durable_files.make_directory(directory)
    for name in stored:
        _restrict(directory / (name + (NEW_SUFFIX if name in published else SUFFIX)))
    # Token files first: an entry without its token would be useless, and the token could not be found out again.
    for name, token in tokens.items():
        path = directory / (name + NEW_SUFFIX)
        with durable_files.partial_file(path, f"{token}\n".encode(), 0o600) as partial:
            partial.rename(path)
    # One sync for all files: thousands of nodes would need thousands of them.
    durable_files.sync_directory(directory)
    if tokens or changed:
        edit.write()
    _publish(directory, {*published, *tokens}, removed)
    without_entry = tuple(n for n, key in stored.items() if key not in by_node.get(n, {}))
    return NodeTokens(
        created=created,
        renewed=renewed,
        existing=tuple(name for name in stored if name not in {*without_entry, *renewed}),
        without_file=tuple(
            name for name in names if name in by_node and name not in {*stored, *renewed}
        ),
        without_entry=without_entry,
        until_ns=until_ns,
        unlisted=tuple(unlisted),
    )


def create_token_file(
    holder: credentials.Credential,
    until_ns: int | None,
    file: Path,
    tokens_file: Path,
) -> None:
    """Create the token of one holder, and its entry in the tokens file. Raises TokensFileError before any change, and OSError."""
    edit = TokensFileEdit.begin(tokens_file)
    if any(entry.credential.label == holder.label for entry in edit.credentials.entries.values()):
        message = (
            f"{edit.path}: {holder.label} has an entry; fix: remove it, or choose another NAME"
        )
        raise TokensFileError(message)
    if file.exists():
        message = f"{file} exists; fix: remove it, or choose another file"
        raise TokensFileError(message)
    token = credentials.generate_token()
    key = credentials.CredentialKey("token", credentials.digest_token(token))
    entry = {key: credentials.CredentialEntry(holder, until_ns)}
    lines = f"{format_entry(holder.name, entry)}\n"
    edit.change(section_name(holder), lines)
    durable_files.make_directory(file.parent)
    durable_files.write_durably(file, f"{token}\n".encode(), 0o600)
    edit.write()


def _read_keys(
    directory: Path, names: Iterable[str], suffix: str
) -> dict[str, credentials.CredentialKey]:
    """Return the keys of the token files that exist. Raises TokensFileError, OSError."""
    keys = {}
    for name in names:
        path = directory / (name + suffix)
        try:
            token = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            token = ""
        if not _TOKEN.fullmatch(token):
            message = f"{path}: expected one token; fix: remove the file"
            raise TokensFileError(message)
        keys[name] = credentials.CredentialKey("token", credentials.digest_token(token))
    return keys


def _expiry_ns(entries: _Entries, key: credentials.CredentialKey | None) -> int | None:
    """Return the expiry of a node's token: of a key, or else of the one that expires last; None for never."""
    tokens = [each for each in entries if each.kind == "token"] if key is None else [key]
    ends = [entries[each].until_ns for each in tokens if each in entries]
    finite = [end for end in ends if end is not None]
    return max(finite) if finite and len(finite) == len(ends) else None


def _format_line(
    name: str, token: str, present: _Entries, options: NodeTokenOptions, now_ns: int
) -> str:
    """Return the line of a node with a new token, which keeps the keys that have not expired."""
    limits = [entry.credential.max_authority for entry in present.values()]
    limit = options.max_authority or min(limits, default=credentials.MAX_AUTHORITY)
    holder = credentials.Credential(name, credentials.Role.NODE, max_authority=limit)
    key = credentials.CredentialKey("token", credentials.digest_token(token))
    # The agent uses the former token until its new file is distributed.
    valid = {each: entry for each, entry in present.items() if not entry.is_expired(now_ns)}
    return format_entry(name, {**valid, key: credentials.CredentialEntry(holder, options.until_ns)})


def _publish(directory: Path, published: Iterable[str], removed: Iterable[str]) -> None:
    """Rename new token files, and delete those of removed nodes."""
    for name in published:
        (directory / (name + NEW_SUFFIX)).rename(directory / (name + SUFFIX))
    for name in filter(_is_file_name, removed):
        for suffix in (SUFFIX, NEW_SUFFIX):
            (directory / (name + suffix)).unlink(missing_ok=True)
    durable_files.sync_directory(directory)


def _restrict(path: Path) -> None:
    """Make a token file readable by its owner only."""
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
