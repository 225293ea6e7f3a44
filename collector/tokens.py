"""Credentials: which token speaks for which node, and who may read.

The tokens file (TOML) holds SHA-256 digests and no tokens:

    [nodes]
    gpu-node-1 = "sha256:..."
    [readers]
    grafana = "sha256:..."
"""

from __future__ import annotations

import hashlib
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from railscope.settings import SettingsError

_PREFIX = "sha256:"
_BEARER = "Bearer "
_TOKEN_BYTES = 32


def digest(token: str) -> str:
    """A token as the tokens file holds it."""
    return _PREFIX + hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def new_token() -> str:
    """A fresh random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Names by digest. Looking a digest up tells nothing of the token, whatever time it takes."""

    nodes: Mapping[str, str]
    readers: Mapping[str, str]

    def node(self, authorization: str) -> str | None:
        """The node that an Authorization header speaks for."""
        return self.nodes.get(_digest_of(authorization))

    def reader(self, authorization: str) -> str | None:
        """The reader that an Authorization header speaks for."""
        return self.readers.get(_digest_of(authorization))


def _digest_of(authorization: str) -> str:
    return digest(authorization.removeprefix(_BEARER)) if authorization.startswith(_BEARER) else ""


def load(path: Path) -> Tokens:
    """Tokens from a file. Raises SettingsError that says what is wrong and how to mend it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = (
            f"tokens_file {path} does not exist: make one with `railscope collector token NODE`"
        )
        raise SettingsError(message) from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"tokens_file {path} cannot be read: {error}"
        raise SettingsError(message) from error
    unknown = set(content) - {"nodes", "readers"}
    if unknown:
        message = f"tokens_file {path}: unknown section {min(unknown)!r}; known are nodes, readers"
        raise SettingsError(message)
    return Tokens(_section(path, content, "nodes"), _section(path, content, "readers"))


def _section(path: Path, content: Mapping[str, object], name: str) -> dict[str, str]:
    section = content.get(name, {})
    by_digest: dict[str, str] = {}
    if not isinstance(section, dict):
        message = f"tokens_file {path}: [{name}] must be a section"
        raise SettingsError(message)
    for who, value in section.items():
        if not isinstance(value, str) or not value.startswith(_PREFIX):
            message = f"tokens_file {path}: [{name}] {who} must be {_PREFIX}<64 hex digits>"
            raise SettingsError(message)
        if by_digest.setdefault(value, who) != who:
            message = f"tokens_file {path}: {who} and {by_digest[value]} share a token"
            raise SettingsError(message)
    return by_digest
