"""Bounded parsing of TOML written by administrators.

`tomllib` raises ValueError and RecursionError besides its own error, and returns integers beyond 64 bits
and tables of any depth. All TOML is parsed here, so that one error covers all of these.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from railscope.numeric_text import shown
from railscope.reading import SIGNED_LIMIT

MAX_DEPTH = 32
"""Maximum nesting of tables and arrays; the files of Railscope need four."""
MAX_BYTES = 16 << 20
_MAX_SHOWN = 100


class TomlError(ValueError):
    """A text that is not TOML, or contains a value that files of Railscope must not contain."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises TomlError that names the line, or the key and its value.

    Integers have 64 bits, as TOML requires; texts and keys contain no NUL.
    """
    if len(text) > MAX_BYTES:
        message = f"{len(text)} characters: expected at most {MAX_BYTES}"
        raise TomlError(message)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # int() of thousands of digits, a time zone of 99 hours
        message = f"a value out of range: {error}"
        raise TomlError(message) from error
    _check(document)
    return document


def _check(document: dict[str, Any]) -> None:
    """Check all values against the limits, without recursion: dotted keys nest freely."""
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    while waiting:
        where, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, int) and not -SIGNED_LIMIT <= value < SIGNED_LIMIT:
            message = f"{where}: number of {value.bit_length()} bits: expected at most 64, signed"
            raise TomlError(message)
        if isinstance(value, str) and "\0" in value:
            message = f"{where}: {shown(value)}: expected a text without NUL characters"
            raise TomlError(message)
        waiting += [(name, part, depth + 1) for name, part in _parts(where, value)]


def _parts(where: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list):
        return [(where, part) for part in value]
    if not isinstance(value, dict):
        return ()
    names = {key: f"{where}.{key}"[-_MAX_SHOWN:] if where else key[:_MAX_SHOWN] for key in value}
    if any("\0" in key for key in value):
        message = f"{where or 'the file'}: a key has a NUL character"
        raise TomlError(message)
    return [(names[key], part) for key, part in value.items()]


def _too_deep() -> TomlError:
    return TomlError(f"tables or arrays are nested too deeply: expected at most {MAX_DEPTH} levels")
