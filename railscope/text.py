"""Untrusted text from nodes and people, made safe for storage, logs and display."""

from __future__ import annotations

_ESCAPED_BYTE = range(0xDC80, 0xDD00)


def printable(text: str) -> str:
    r"""Return the text with all unprintable characters escaped.

    Bytes that are not UTF-8 (surrogates in Python) become `\xff`; control characters,
    line breaks, bidirectional controls and other invisible characters become `\n`, `\x1b`,
    `\u202e`. A printable text is returned unchanged.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) in _ESCAPED_BYTE:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
