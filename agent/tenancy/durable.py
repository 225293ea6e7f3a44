"""Atomic and durable replacement of a small file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

Kept = TypeVar("Kept")
DAMAGED = ".damaged"


class DamagedError(ValueError):
    """A file with invalid content; the message contains its new name."""


def write(path: Path, kept: object) -> None:
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


def read(path: Path, shape: type[Kept]) -> Kept | None:
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
        raise DamagedError(message) from error
