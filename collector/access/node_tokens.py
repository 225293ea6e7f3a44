"""Tokens of many nodes: a file for each node, and their entries in the tokens file.

A run that was interrupted is completed by the next one: token files are written before the tokens file, and
a token file without an entry gets one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.access import credentials
from railscope import convert_errors, durable_files, untrusted_text

SUFFIX = ".token"
_MAX_NAME_BYTES = 200
"""Maximum length of a node's name in UTF-8, so that the temporary name of its file is valid."""
_TOKEN = re.compile(r"[\x21-\x7e]+")
_NODES_HEADER = re.compile(r"^[ \t]*\[[ \t]*nodes[ \t]*\][ \t]*(?:#.*)?$", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeTokens:
    """Result of the creation of tokens: names of nodes."""

    created: tuple[str, ...]
    """Nodes with a new token."""
    existing: tuple[str, ...]
    """Nodes whose token file and entry exist; the entry of some may have been added."""
    without_file: tuple[str, ...]
    """Nodes with an entry in the tokens file and no token file, such as a token created by hand: kept."""
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
            raise credentials.TokensFileError(message)
        if name in lines:
            message = (
                f"line {number}: node {name} is also in line {lines[name]}: expected each node once"
            )
            raise credentials.TokensFileError(message)
        lines[name] = number
    if not lines:
        message = "no node: expected one name per line"
        raise credentials.TokensFileError(message)
    return list(lines)


def _is_file_name(name: str) -> bool:
    is_short = len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
    return credentials.is_name(name) and is_short and "/" not in name and not name.startswith(".")


def create_node_tokens(
    names: Sequence[str],
    directory: Path,
    tokens_file: Path,
    format_entry: Callable[[str, str], str],
    *,
    is_revoking: bool = False,
) -> NodeTokens:
    """Create the missing tokens of nodes, and their entries; `format_entry` returns the line of a name and token.

    With `is_revoking`, entries and token files of nodes that are not listed are removed. Raises TokensFileError
    before any change, and OSError.
    """
    tokens_file = tokens_file.resolve()
    text = tokens_file.read_text(encoding="utf-8") if tokens_file.exists() else ""
    present = credentials.parse_credentials(text)
    keys_by_node: dict[str, set[credentials.CredentialKey]] = {}
    for key, entry in present.entries.items():
        if entry.credential.role is credentials.Role.NODE:
            keys_by_node.setdefault(entry.credential.name, set()).add(key)
    stored = dict(_read_tokens(directory, names))
    for name, token in stored.items():
        key = credentials.CredentialKey("token", credentials.digest_token(token))
        if key not in keys_by_node.get(name, {key}):
            message = f"{directory / (name + SUFFIX)}: not the token of {name} in {tokens_file}; fix: remove the file or the entry"
            raise credentials.TokensFileError(message)
    created = {
        name: credentials.generate_token()
        for name in names
        if name not in stored and name not in keys_by_node
    }
    added = {name: token for name, token in (stored | created).items() if name not in keys_by_node}
    unlisted = sorted(keys_by_node.keys() - set(names))
    removed = unlisted if is_revoking else []
    lines = "".join(f"{format_entry(name, token)}\n" for name, token in added.items())
    changed = _edited(text, lines, removed)
    _check_edit(present, changed, lines, removed)
    durable_files.make_directory(directory)
    for name in stored:
        _restrict(directory / (name + SUFFIX))
    for name, token in created.items():
        _replace(directory / (name + SUFFIX), f"{token}\n".encode(), 0o600)
    durable_files.sync_directory(directory)
    if changed != text:
        _replace(tokens_file, changed.encode(), None)
        durable_files.sync_directory(tokens_file.parent)
    for name in removed:
        if _is_file_name(name):
            (directory / (name + SUFFIX)).unlink(missing_ok=True)
    return NodeTokens(
        created=tuple(created),
        existing=tuple(stored),
        without_file=tuple(name for name in names if name in keys_by_node and name not in stored),
        unlisted=tuple(unlisted),
    )


def _read_tokens(directory: Path, names: Collection[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        path = directory / (name + SUFFIX)
        try:
            token = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            token = ""
        if not _TOKEN.fullmatch(token):
            message = f"{path}: expected one token; fix: remove the file"
            raise credentials.TokensFileError(message)
        yield name, token


def _edited(text: str, lines: str, removed: Collection[str]) -> str:
    """Return a tokens file with further lines of nodes, first in their section, and without some."""
    if not lines and not removed:
        return text
    header = _NODES_HEADER.search(text)
    if header is None:
        separator = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{separator}[nodes]\n{lines}"
    start = header.end() + 1
    following = _HEADER.search(text, start)
    end = following.start() if following else len(text)
    names = [form for name in removed for form in (name, credentials.quote_key(name), f"'{name}'")]
    entry = re.compile(rf"^[ \t]*(?:{'|'.join(map(re.escape, names))})[ \t]*=.*\n?", re.MULTILINE)
    section = entry.sub("", text[start:end]) if names else text[start:end]
    return f"{text[: header.end()]}\n{lines}{section}{text[end:]}"


def _check_edit(
    present: credentials.Credentials, changed: str, lines: str, removed: Collection[str]
) -> None:
    """Raise TokensFileError if the changed file has other entries than expected."""
    added = credentials.parse_credentials(f"[nodes]\n{lines}").entries
    remaining = {
        key: entry
        for key, entry in present.entries.items()
        if entry.credential.role is not credentials.Role.NODE
        or entry.credential.name not in removed
    }
    message = "the section [nodes] cannot be changed: expected [nodes] on a line of its own, and one line per node"
    with convert_errors(credentials.TokensFileError, credentials.TokensFileError, f"{message}: "):
        found = credentials.parse_credentials(changed)
    if found != credentials.Credentials({**remaining, **added}, present.revoked):
        raise credentials.TokensFileError(message)


def _restrict(path: Path) -> None:
    """Make a token file readable by its owner only."""
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    """Replace a file atomically; None keeps the mode and the owner of a file that exists."""
    with durable_files.partial_file(path, content, 0o666 if mode is None else mode) as partial:
        if mode is None and path.exists():
            status = path.stat()
            os.chown(partial, status.st_uid, status.st_gid)
            partial.chmod(status.st_mode & 0o7777)
        partial.rename(path)
