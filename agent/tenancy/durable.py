"""A small file that is either as it was or as it is to be, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

Kept = TypeVar("Kept")
DAMAGED = ".damaged"


class DamagedError(ValueError):
    """A file that is there and not what it must be; the message says where it was put aside."""


def write(path: Path, kept: object) -> None:
    """Write it beside, have the disk take it, put it in place. Raises OSError."""
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
    """What was written; None where nothing was. Raises OSError, and DamagedError for what is none."""
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
