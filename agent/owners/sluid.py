"""SLUIDs: names of jobs, and of their control groups, in Slurm 26.05 and later.

A letter `s` and 13 digits of Crockford's base 32 encode 64 bits: the cluster (12), milliseconds (42), a
sequence within the millisecond (10). Source: SchedMD/slurm:src/common/sluid.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.owners import FormatError

PATTERN = "s[0-9A-F][0-9A-HJKMNP-TV-Z]{12}"
"""Format as Slurm writes it. The first digit has the 4 bits that are left over from 12 digits."""

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)} | {"O": 0, "I": 1, "L": 1}
_WRITTEN = re.compile("s([0-9A-FILO][0-9A-TV-Z]{12})", re.ASCII | re.IGNORECASE)
_LENGTH = 13
_TIME_BITS, _SEQUENCE_BITS = 42, 10


@dataclass(frozen=True, slots=True)
class Sluid:
    """Decoded SLUID.

    The milliseconds are the time at which slurmctld created it, since 1970 by CLOCK_TAI: ahead of UTC by
    the leap seconds (37 since 2017) if the kernel has that offset configured, otherwise equal to UTC.
    """

    cluster: int
    milliseconds: int
    sequence: int

    def __str__(self) -> str:
        """Return the name as Slurm writes it."""
        whole = (self.cluster << _TIME_BITS | self.milliseconds) << _SEQUENCE_BITS | self.sequence
        places = range(5 * (_LENGTH - 1), -1, -5)
        return "s" + "".join(_DIGITS[whole >> place & 0x1F] for place in places)


def decode(text: str) -> Sluid:
    """Decode a SLUID; like Slurm, accept lower case, and O, I and L for 0 and 1.

    Raises FormatError.
    """
    written = _WRITTEN.fullmatch(text)
    if written is None:
        message = f"{text!r} is no SLUID: an s and 13 digits of base 32"
        raise FormatError(message)
    whole = 0
    for digit in written[1].upper():
        whole = whole << 5 | _VALUES[digit]
    return Sluid(
        whole >> _TIME_BITS + _SEQUENCE_BITS,
        whole >> _SEQUENCE_BITS & (1 << _TIME_BITS) - 1,
        whole & (1 << _SEQUENCE_BITS) - 1,
    )
