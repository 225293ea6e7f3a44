"""Files in the agent's state directory: durable JSON files and the socket of `railscope claim`.

A JSON file is replaced atomically. The names of the socket and of the HTTP path are shared by the
agent and `railscope claim`. This module imports no other module of the agent, so that the command
starts quickly.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

FileContent = TypeVar("FileContent")
DAMAGED = ".damaged"


class DamagedFileError(ValueError):
    """A file with invalid content; the message contains its new name."""


def write_json(path: Path, kept: object) -> None:
    """Write a temporary file, sync it and rename it. Raises OSError."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(kept))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_json(path: Path, shape: type[FileContent]) -> FileContent | None:
    """Return the content; None without a file. Raises OSError, and DamagedError for invalid content."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        aside = path.with_name(path.name + DAMAGED)
        path.replace(aside)
        message = f"{path} is damaged ({error}): it was put aside as {aside.name}"
        raise DamagedFileError(message) from error


CLAIMS_SOCKET = "claims.sock"
"""Name of the socket in the agent's state directory."""
CLAIMS_PATH = "/v1/claims"
