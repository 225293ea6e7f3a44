"""Data files of the simulator: names and numbers of hardware, drivers and the demo, and their loader."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_text(file: str) -> str:
    """Return the text of a data file."""
    return Path(__file__).with_name(file).read_text("utf-8")


def read_table(name: str, kind: type[T]) -> T:
    """Return the TOML data file with a name, as a type; a mismatch is an error in the file."""
    found: dict[str, Any] = tomllib.loads(read_text(f"{name}.toml"))
    return msgspec.convert(found, kind)
