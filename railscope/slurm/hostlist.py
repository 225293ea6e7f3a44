"""Slurm's lists of nodes: `n[01-03,07],login1` (SchedMD/slurm:src/common/hostlist.c)."""

from __future__ import annotations

import itertools
import re

from railscope.slurm import FormatError

MOST = 65_536
"""Maximum number of names in a list; Slurm's own bound of one range (MAX_RANGE)."""

_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile("([0-9]{1,10})(?:-([0-9]{1,10}))?")
_NONE = {"", "(null)", "None assigned"}


def expand(text: str) -> tuple[str, ...]:
    """Return the nodes of a list, in its order; none for `(null)`. Raises FormatError."""
    if text in _NONE:
        return ()
    parts = _PART.findall(text)
    if ",".join(parts) != text:
        raise _wrong(text)
    names: list[str] = []
    for part in parts:
        names += _names(part, MOST - len(names))
    return tuple(names)


def numbers(text: str, most: int = MOST) -> tuple[int, ...]:
    """Return the numbers of `0,2-3`. Raises FormatError."""
    return tuple(number for number, _ in _numbers(text, most))


def _names(part: str, most: int) -> list[str]:
    """Return the names of `rack[0-1]n[00-31]-ib`: the last bracket varies fastest."""
    literal, *rest = _BRACKET.split(part)
    choices: list[list[str]] = [[literal]]
    count = 1
    for inside, literal in zip(rest[::2], rest[1::2], strict=True):
        choices.append([f"{number:0{width}d}{literal}" for number, width in _numbers(inside, MOST)])
        count *= len(choices[-1])
        if count > most:
            raise _wrong(part, f"and what stands before it are more than {MOST} names")
    return ["".join(choice) for choice in itertools.product(*choices)]


def _numbers(text: str, most: int) -> list[tuple[int, int]]:
    """Return numbers with their printed width; a range has the width of its first number."""
    found: list[tuple[int, int]] = []
    for piece in text.split(","):
        matched = _RANGE.fullmatch(piece)
        if matched is None:
            raise _wrong(text)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise _wrong(text)
        if len(found) + last - first >= most:
            raise _wrong(text, f"stands for more than {most} numbers")
        found += [(number, len(matched[1])) for number in range(first, last + 1)]
    return found


def _wrong(text: str, problem: str = "is no list as Slurm writes it") -> FormatError:
    return FormatError(f"{text[:200]!r} {problem}")
