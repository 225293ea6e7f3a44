"""Slurm's notation of trackable resources (TRES), such as gres/gpu:h100=4, and of MIG profiles in their types."""

from __future__ import annotations

import re
from fractions import Fraction

from railscope.slurm import SlurmFormatError

_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([KMGTPE]?)")
_POWERS = {suffix: 1024**power for power, suffix in enumerate(["", *"KMGTPE"])}
_NO_RESOURCES = {"", "(null)", "N/A"}
_MIG_PROFILE = re.compile(r"(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb")


def mig_profile(text: str) -> str:
    """Return the MIG profile in a type such as `nvidia_a100_1g.5gb`, or in a name of NVML; empty without one."""
    match = _MIG_PROFILE.search(text)
    return match[0] if match else ""


def parse_tres(text: str) -> dict[str, int]:
    """Return generic resources by name from a list such as `cpu=24,gres/gpu=2,gres/gpu:h100=2`.

    The name is the text after `gres/`; an entry with a type repeats the same devices. Values in bytes
    stay in bytes. Raises SlurmFormatError.
    """
    counts: dict[str, int] = {}
    for entry in [] if text in _NO_RESOURCES else text.split(","):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise _invalid_resource(entry)
        if name.startswith("gres/"):
            if name in counts:
                message = f"duplicate {name}: expected it once"
                raise SlurmFormatError(message)
            counts[name] = _quantity(amount)
    return {name.removeprefix("gres/"): count for name, count in counts.items()}


def _quantity(text: str) -> int:
    """Parse a count, or bytes with a binary suffix; Slurm prints them rounded to two digits."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _invalid_resource(text)
    return int(Fraction(match[1]) * _POWERS[match[2]])


def _invalid_resource(text: str) -> SlurmFormatError:
    return SlurmFormatError(f"invalid generic resource {text[:200]!r}: expected Slurm's notation")
