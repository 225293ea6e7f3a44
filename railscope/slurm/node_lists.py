"""Slurm's lists of nodes, such as `n[01-03,07],login1`. Source: SchedMD/slurm:src/common/hostlist.c."""

from __future__ import annotations

import itertools
import re

from railscope.slurm import SlurmFormatError

MAX_NODES = 65_536
"""Maximum number of names in a list; Slurm's own bound of one range (MAX_RANGE)."""

_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile("([0-9]{1,10})(?:-([0-9]{1,10}))?")
_NO_NODES = {"", "(null)", "None assigned"}


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the nodes of a list, in its order; none for `(null)`. Raises SlurmFormatError."""
    if text in _NO_NODES:
        return ()
    parts = _PART.findall(text)
    # What the pattern skips would be lost, such as a bracket that is not closed.
    if ",".join(parts) != text:
        raise _invalid_list(text)
    names: list[str] = []
    for part in parts:
        names += _names(part, MAX_NODES - len(names))
    return tuple(names)


def is_same_node(name: str, other: str) -> bool:
    """True if two names of a node are equal, or one is the other without its domain.

    NodeName may be the short name or the full one (slurm.conf(5)).
    """
    short = name.partition(".")[0], other.partition(".")[0]
    return name == other or (short[0] == short[1] and short[0] in (name, other))


def _names(part: str, max_count: int) -> list[str]:
    """Return the names of `rack[0-1]n[00-31]-ib`: the last bracket varies fastest."""
    literal, *rest = _BRACKET.split(part)
    choices: list[list[str]] = [[literal]]
    count = 1
    for inside, literal in zip(rest[::2], rest[1::2], strict=True):
        choices.append(
            [f"{number:0{width}d}{literal}" for number, width in printed_numbers(inside, MAX_NODES)]
        )
        count *= len(choices[-1])
        # Before the names are made: a few brackets are millions of names.
        if count > max_count:
            raise _invalid_list(part, f"at most {MAX_NODES} names")
    return ["".join(choice) for choice in itertools.product(*choices)]


def printed_numbers(text: str, max_count: int) -> list[tuple[int, int]]:
    """Return numbers with their printed width; a range has the width of its first number."""
    ranges: list[tuple[int, int]] = []
    for piece in text.split(","):
        matched = _RANGE.fullmatch(piece)
        if matched is None:
            raise _invalid_list(text)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise _invalid_list(text)
        # Before the range is expanded: its ends may be any numbers.
        if len(ranges) + last - first >= max_count:
            raise _invalid_list(text, f"at most {max_count} numbers")
        ranges += [(number, len(matched[1])) for number in range(first, last + 1)]
    return ranges


def _invalid_list(text: str, expected: str = "a list in Slurm's notation") -> SlurmFormatError:
    return SlurmFormatError(f"invalid list {text[:200]!r}: expected {expected}")
