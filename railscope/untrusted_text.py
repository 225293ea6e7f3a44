"""Bounded parsing and display of text from outside the program: text, numbers, JSON, TOML, CSV.

Untrusted text from nodes and people is made safe here for storage, logs and display.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from railscope import RailscopeError, convert_errors
from railscope.reading import SIGNED_LIMIT

# Surrogates by which Python's surrogateescape represents bytes that are not UTF-8 (PEP 383).
_ESCAPED_BYTE = range(0xDC80, 0xDD00)


def printable(text: str) -> str:
    r"""Return the text with all unprintable characters escaped.

    Bytes that are not UTF-8 (surrogates in Python) become `\xff`; control characters,
    line breaks, bidirectional controls and other invisible characters become `\n`, `\x1b`,
    `\u202e`. A printable text is returned unchanged.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) in _ESCAPED_BYTE:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


MAX_DIGITS = 15
"""Digits of a decimal number before its point."""
MAX_PLACES = 9
"""Digits after the point."""
_MAX_TEXT_SHOWN = 60
_DECIMAL = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{1,{MAX_PLACES}}})?")


DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec: content of another form, that is not UTF-8, or that is nested too deeply."""


class TextFormatError(RailscopeError, ValueError):
    """Base of the errors of this module: a text that is not in the expected format."""


class NumberError(TextFormatError):
    """A text that is not a number within its bounds; the message states the expected form."""


def parse_decimal(text: str, *, minimum: int | None = None) -> Fraction:
    """Parse `12`, `-3` or `12.50` exactly. Raises NumberError.

    The length is bounded first: Python computes `Fraction("1e999999999")` in one call that no signal
    interrupts, and `int()` rejects more than 4300 digits with an error of its own.
    """
    number = Fraction(text) if _DECIMAL.fullmatch(text) else None
    if number is None or (minimum is not None and number < minimum):
        limit = "" if minimum is None else f", at least {minimum}"
        message = (
            f"{quote_text(text)}: expected a decimal number such as 12.50{limit}, with at most "
            f"{MAX_DIGITS} digits before the point and {MAX_PLACES} after it"
        )
        raise NumberError(message)
    return number


def parse_whole(text: str, limit: int) -> int:
    """Parse ASCII digits as a number from 0 to less than `limit`. Raises NumberError.

    Leading zeros are valid, up to the number of digits of the limit.
    """
    digits = text.isascii() and text.isdecimal() and len(text) <= 2 * len(str(limit))
    if not digits or int(text) >= limit:
        message = f"{quote_text(text)}: expected a whole number below {limit}"
        raise NumberError(message)
    return int(text)


def quote_text(text: str) -> str:
    """Format a text for a message, quoted and with a length limit."""
    return repr(text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}...")


_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_STEP = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")
_MAX_JSON_SHOWN = 40
Shape = TypeVar("Shape")


class ShapeError(TextFormatError):
    """A value is not of the expected type; `field` is its path, empty for the top level."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}" if field else reason)


def complete_types() -> None:
    """Complete all loaded types of msgspec, before several threads decode at the same time.

    msgspec completes a type at its first use, without a lock (version 0.22): the process crashes when two threads
    do so at the same time.
    """
    types = deque(msgspec.Struct.__subclasses__())
    while types:
        shape = types.popleft()
        types += shape.__subclasses__()
        with suppress(TypeError):  # a type that cannot be decoded
            msgspec.json.Decoder(shape)


def convert_json(value: Any, shape: type[Shape]) -> Shape:
    """Convert decoded JSON to a type. Raises ShapeError with field, value and expected type."""
    try:
        return msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        problem, field = (match[1], match[2]) if match else (str(error), "")
        reason = problem[:1].lower() + problem[1:]
        raise ShapeError(
            field, f"{format_json_value(_value_at(value, field))}: {reason}"
        ) from error
    except UnicodeEncodeError as error:  # half of a pair of escapes, which `json` returns as it is
        problem = f"{quote_text(error.object)}: expected Unicode text"
        raise ShapeError(field="", reason=problem) from error


def format_json_value(value: object) -> str:
    """Format a value for a message, on one line and with a length limit."""
    text = repr(value)
    return text if len(text) <= _MAX_JSON_SHOWN else f"{text[:_MAX_JSON_SHOWN]}..."


def _value_at(value: Any, field: str) -> Any:
    """Return the value at a path; for keys that the path does not name, the mapping that contains them."""
    for index, name in _STEP.findall(field):
        if isinstance(value, list) and index:
            value = value[int(index)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            break
    return value


BYTE_ORDER_MARK = "\ufeff"
"""First character of a text that editors and spreadsheets of Windows save as UTF-8; it is not a part of the text."""
MAX_DEPTH = 32
"""Maximum nesting of tables and arrays; the files of Railscope need four."""
MAX_BYTES = 16 << 20
_MAX_VALUE_SHOWN = 100


class TomlError(TextFormatError):
    """A text that is not TOML, or contains a value that files of Railscope must not contain."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises TomlError that names the line, or the key and its value.

    Integers have 64 bits, as TOML requires; texts and keys contain no NUL. `tomllib` raises ValueError and
    RecursionError besides its own error, and returns larger integers and tables of any depth.
    """
    if len(text) > MAX_BYTES:
        message = f"{len(text)} characters: expected at most {MAX_BYTES}"
        raise TomlError(message)
    try:
        document = tomllib.loads(text.removeprefix(BYTE_ORDER_MARK))
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # int() of thousands of digits, a time zone of 99 hours
        message = f"value out of range: {error}"
        raise TomlError(message) from error
    _check(document)
    return document


def _check(document: dict[str, Any]) -> None:
    """Check all values against the limits, without recursion: dotted keys nest freely."""
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, int) and not -SIGNED_LIMIT <= value < SIGNED_LIMIT:
            message = f"{place}: number of {value.bit_length()} bits: expected at most 64, signed"
            raise TomlError(message)
        if isinstance(value, str) and "\0" in value:
            message = f"{place}: {quote_text(value)}: expected a string without NUL characters"
            raise TomlError(message)
        waiting += [(name, part, depth + 1) for name, part in _parts(place, value)]


def _parts(place: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list):
        return [(place, part) for part in value]
    if not isinstance(value, dict):
        return ()
    names = {
        key: f"{place}.{key}"[-_MAX_VALUE_SHOWN:] if place else key[:_MAX_VALUE_SHOWN]
        for key in value
    }
    if any("\0" in key for key in value):
        message = f"{place or 'the file'}: invalid key: expected no NUL characters"
        raise TomlError(message)
    return [(names[key], part) for key, part in value.items()]


def _too_deep() -> TomlError:
    return TomlError(f"tables or arrays are nested too deeply: expected at most {MAX_DEPTH} levels")


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""Beginnings of a cell that a spreadsheet interprets; an apostrophe, so that the original text can be restored."""


def escape_formula(cell: str) -> str:
    """Return a text as a cell of CSV that no spreadsheet interprets as a formula: with an apostrophe before it."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def restore_formula(cell: str) -> str:
    """Return the text that `escape_formula` made a cell of."""
    return cell.removeprefix("'")


class CsvError(TextFormatError):
    """A text that is not CSV; the message names the line."""


def parse_csv(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text, with the number of the line each begins on. Raises CsvError.

    Comments, which begin with `#`, and empty lines are skipped.
    """
    if "\0" in text:
        message = "invalid file: expected no NUL characters"
        raise CsvError(message)
    lines = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n").split("\n")
    reader = csv.reader(("" if line.startswith("#") else line for line in lines), strict=True)
    while True:
        number = reader.line_num + 1
        with convert_errors(csv.Error, CsvError, f"line {number}: "):
            row = next(reader, None)
        if row is None:
            return
        if row:
            yield number, [cell.strip() for cell in row]
