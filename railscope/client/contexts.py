"""Context file: named servers with the files of their credentials, so that a URL is typed once.

current = "production"

[contexts.production]
collector = "https://collector.example.com:9470"
token_file = "/home/operator/.config/railscope/token"

[contexts.node-7]
agent = "http://node-7:9469"
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from railscope import durable_files, untrusted_text
from railscope.client.connection import TIMEOUT_SECONDS, ClientError, ServerAddress, parse_url

VARIABLE = "RAILSCOPE_CONTEXT"
"""Path of the context file."""
LOCAL_COLLECTORS = ("http://127.0.0.1:9470", "http://127.0.0.1:19470")
"""Collectors that are tried without an option and a context: an installed one, and that of the demo."""
_PROBE_SECONDS = 1.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FILE_KEYS = ("token_file", "ca_file", "certificate_file", "key_file")


class ServerContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A server: the URL of a collector or of an agent, and files of credentials."""

    collector: str = ""
    agent: str = ""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


class ContextFile(msgspec.Struct, forbid_unknown_fields=True):
    """Contexts by name, and the name of the one in use."""

    current: str = ""
    contexts: dict[str, ServerContext] = {}


def default_path() -> Path:
    """Return the path of the context file."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    configuration = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(configuration) / "railscope" / "context.toml"


def read_contexts(path: Path) -> ContextFile:
    """Read a context file; without the file there are no contexts. Raises ClientError."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return ContextFile()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read context file {path}: {error}"
        raise ClientError(message) from error
    try:
        found = untrusted_text.convert_json(untrusted_text.parse_toml(text), ContextFile)
    except untrusted_text.TextFormatError as error:
        message = f"invalid context file {path}: {error}: expected [contexts.NAME] with collector or agent; fix: correct it, or write it again with railscope context set"
        raise ClientError(message) from error
    for name, context in found.contexts.items():
        check_context(name, context, str(path))
    return found


def check_context(name: str, context: ServerContext, origin: str) -> None:
    """Check a name and its context. Raises ClientError."""
    if not _NAME.fullmatch(name):
        expected = "letters, digits and _ . - (at most 63, the first a letter or digit)"
        message = f"invalid context name {untrusted_text.quote_text(name)} in {origin}: expected {expected}"
        raise ClientError(message)
    if bool(context.collector) == bool(context.agent):
        message = f"invalid context {name!r} in {origin}: expected either a collector or an agent"
        raise ClientError(message)
    parse_url(context.collector or context.agent)
    for key in _FILE_KEYS:
        if not getattr(context, key).isprintable():
            message = f"invalid {key} of context {name!r} in {origin}: expected a path of printable characters"
            raise ClientError(message)


def write_contexts(path: Path, contexts: ContextFile) -> None:
    """Replace a context file; only its owner can read it. Raises ClientError."""
    lines = [f"current = {json.dumps(contexts.current)}"]
    for name, context in sorted(contexts.contexts.items()):
        check_context(name, context, str(path))
        lines += ["", f'[contexts."{name}"]']
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in msgspec.structs.asdict(context).items()
            if value
        ]
    try:
        durable_files.make_directory(path.parent)
        durable_files.write_durably(path, ("\n".join(lines) + "\n").encode(), 0o600)
    except OSError as error:
        message = f"cannot write context file {path}: {error.strerror or error}"
        raise ClientError(message) from error


def choose_address(options: Mapping[str, Any], path: Path) -> ServerAddress:
    """Return the server of the options, else of the context, else a local collector. Raises ClientError.

    A file that an option names replaces that of the context. A context's files are not used for another URL.
    """
    if options.get("collector") and options.get("agent"):
        message = "invalid options --collector and --agent: expected one of them"
        raise ClientError(message)
    url = options.get("collector") or options.get("agent") or ""
    files: dict[str, Any] = {key: options.get(key, "") for key in _FILE_KEYS}
    seconds = float(options.get("timeout_seconds") or TIMEOUT_SECONDS)
    if url:
        if options.get("context"):
            message = "invalid option --context with a URL: expected one of them"
            raise ClientError(message)
        return ServerAddress(
            url, is_agent=bool(options.get("agent")), timeout_seconds=seconds, **files
        )
    contexts = read_contexts(path)
    name = options.get("context") or contexts.current
    if not name and files["token_file"]:
        message = "no collector is named for --token-file, and a token is sent only to a server that is named: expected --collector URL, --agent URL or a context; fix: add --collector URL"
        raise ClientError(
            message
        )  # any user of this host can listen at the ports of local collectors
    if not name:
        return ServerAddress(_local_collector(path), timeout_seconds=seconds, **files)
    if name not in contexts.contexts:
        message = f"unknown context {untrusted_text.quote_text(name)}: expected one of {', '.join(sorted(contexts.contexts)) or '(none)'} in {path}"
        raise ClientError(message)
    context = contexts.contexts[name]
    files = {key: files[key] or getattr(context, key) for key in _FILE_KEYS}
    return ServerAddress(
        context.collector or context.agent,
        is_agent=bool(context.agent),
        timeout_seconds=seconds,
        **files,
    )


def _local_collector(path: Path) -> str:
    """Return the first local collector that accepts connections. Raises ClientError."""
    for url in LOCAL_COLLECTORS:
        parts = urlsplit(url)
        try:
            socket.create_connection(
                (parts.hostname or "", parts.port or 0), _PROBE_SECONDS
            ).close()
        except OSError:
            continue
        return url
    message = (
        f"no collector is named, and none listens at {' or '.join(LOCAL_COLLECTORS)}: expected --collector URL,"
        f" --agent URL or a context in {path}; fix: railscope context set NAME --collector URL"
    )
    raise ClientError(message)
