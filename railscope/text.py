"""Text from machines and people, made safe to store, to log and to show."""

from __future__ import annotations

_ESCAPED_BYTE = range(0xDC80, 0xDD00)


def printable(text: str) -> str:
    r"""The text with everything that does not print escaped.

    Bytes that are not UTF-8 (which Python keeps as surrogates) become `\xff`; control characters,
    line breaks, bidirectional controls and other invisible characters become `\n`, `\x1b`,
    `\u202e`. A text that prints is returned as it is.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) in _ESCAPED_BYTE:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
