"""Canonical text of a content, and its SHA-256.

JSON with sorted keys and no whitespace, strings in NFC; numbers are written as strings, so that no
parser converts them to floating point.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

Content: TypeAlias = "str | int | Fraction | Sequence[Content] | Mapping[str, Content] | None"


def canonical(content: Content) -> str:
    """The canonical text of a content. Raises TypeError for any other type, such as float."""
    return json.dumps(_plain(content), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def digest(content: Content) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _plain(content: object) -> object:
    if content is None:
        return None
    if isinstance(content, str):
        return unicodedata.normalize("NFC", content)
    if isinstance(content, int | Fraction):
        return str(content)
    if isinstance(content, Mapping):
        return {_plain(key): _plain(value) for key, value in content.items()}
    if isinstance(content, Sequence):
        return [_plain(item) for item in content]
    message = f"{type(content).__name__} has no canonical text"
    raise TypeError(message)
