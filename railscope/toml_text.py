"""TOML that administrators write.

`tomllib` raises ValueError and RecursionError beside its own error, and returns integers that no
database keeps and tables of any depth. All TOML is read here, so one error stands for all of these.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from railscope.numeric_text import shown
from railscope.reading import SIGNED_LIMIT

MAX_DEPTH = 32
"""Tables and arrays within one another; the files of Railscope need four."""
MAX_BYTES = 16 << 20
_MAX_SHOWN = 100


class TomlError(ValueError):
    """A text that is no TOML, or has a value that no file of Railscope may have."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises TomlError that names the line, or the key and its value.

    Integers have 64 bits, as TOML requires; texts and keys have no NUL.
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
    except ValueError as error:  # int() of thousands of digits, a zone of 99 hours
        message = f"a value out of range: {error}"
        raise TomlError(message) from error
    _check(document)
    return document


def _check(document: dict[str, Any]) -> None:
    """Compare all values with what a file may have, without recursion: dotted keys nest freely."""
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
