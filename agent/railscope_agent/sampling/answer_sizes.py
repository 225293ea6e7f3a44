"""Sizes of answers: an answer with less than the last complete one may hide known devices.

A netlink dump that is cut short, or a driver that skips a sick device, lists fewer devices than
there are, and no call fails.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Sequence
from operator import lt

from railscope_agent.host import Host, Json

ACCEPTED_AFTER_NS = 600_000_000_000
"""Time for which an answer has to stay smaller before it counts as complete.

The statistics of a NIC become fewer with its queues and PFC priorities, those of Lustre when they are cleared.
"""
# Each check is up to three calls of the host: a directory that was emptied must not delay the probe.
MAX_CHECKED_ENTRIES = 16
"""Entries missing from one listing that are looked up by name."""
_TABLES = (
    "/mountstats",
    "/mountinfo",
    "/mounts",
    "/net/route",
    "/bonding_masters",
    "/bonding/slaves",
)
"""Files with an entry per mount, route or interface: they become shorter when one leaves."""
_LISTS = {"/bonding_masters": "bonding", "/bonding/slaves": "bonding_slave"}
"""Files that list interfaces, and the directory that each of these has."""
_NUMBER = re.compile(rb"\b\d{1,20}\b")
_REQUEST_LISTS = ("/mdsc", "/osdc")
"""Files that list requests in flight: empty on an idle client (net/ceph/debugfs.c)."""
_VARYING_CALLS = (
    "lldp.",
    "netlink.dcb(",
    "netlink.fec(",
    "netlink.link_modes(",
    "netlink.links(",
    "netlink.module(",
    "netlink.pause(",
)
"""Calls whose answer is smaller while a link is down or a transceiver is unplugged."""


class AnswerSizes:
    """The size of the last complete answer of each call, and the entries of each listing.

    A file that is read while its driver resets can be empty or end in the middle, and a listing can lack
    entries that are still there. Lists of devices that come and go may shrink.
    """

    def __init__(self) -> None:
        # Keys are hashes: a probe of a large node has thousands of paths and calls.
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._entries: dict[int, tuple[str, ...]] = {}
        self._smaller_since_ns: dict[int, int] = {}

    def is_smaller(self, key: str, sizes: tuple[int, ...], now_ns: int) -> bool:
        """True if a size is below that of the last complete answer; otherwise this answer replaces it."""
        number = hash(key)
        # A first answer is compared with itself: there is nothing yet that it could lack.
        if any(map(lt, sizes, self._sizes.get(number, sizes))):
            since_ns = self._smaller_since_ns.setdefault(number, now_ns)
            if now_ns - since_ns < ACCEPTED_AFTER_NS:
                return True
        self._sizes[number] = sizes
        self._smaller_since_ns.pop(number, None)
        return False

    def is_less(self, host: Host, path: str, content: bytes, now_ns: int) -> bool:
        """True if a file has fewer lines or numbers than before, or lacks an interface."""
        sizes = file_size(path, content), number_count(path, content)
        is_less = self.is_smaller(path, sizes, now_ns)
        for end, directory in _LISTS.items():
            if path.endswith(end):
                listed = content.decode(errors="replace").split()
                # One bond may have replaced another: the same number of lines, and an interface is missing
                # all the same.
                is_less |= self.lacks_entries(
                    host, path, listed, f"/sys/class/net/{{}}/{directory}"
                )
        return is_less

    def lacks_entries(self, host: Host, path: str, listed: Sequence[str], place: str = "") -> bool:
        """True if an entry that was listed before is missing from a listing and is still there."""
        number = hash(path)
        place = place or f"{path}/{{}}"
        missing = sorted(set(self._entries.get(number, ())).difference(listed))
        if any(_exists(host, place.format(name)) for name in missing[:MAX_CHECKED_ENTRIES]):
            # The known entries stay: the next listing is compared with the complete one again.
            return True
        self._entries[number] = tuple(listed)
        return False

    def retain(self, keys: Collection[int], paths: Collection[int]) -> None:
        """Forget the calls and listings that the last probe did not use."""
        for by_call in (self._sizes, self._smaller_since_ns):
            for number in by_call.keys() - keys:
                del by_call[number]
        for number in self._entries.keys() - paths:
            del self._entries[number]


def smaller_answer_error(key: str) -> OSError:
    """Return the error that represents an answer smaller than a complete one."""
    return OSError(errno.EIO, f"incomplete answer: {os.strerror(errno.EIO)}", key)


def file_size(path: str, content: bytes) -> int:
    """Return two for each line and one for a newline at the end; 0 for an empty file."""
    if path.endswith(_REQUEST_LISTS) or not content.strip():
        return 0
    # A file that is cut within its last line has as many lines, but no newline at its end.
    ends = content.endswith(b"\n")
    lines = 1 if path.endswith(_TABLES) else content.count(b"\n") + (not ends)
    return 2 * lines + ends


def number_count(path: str, content: bytes) -> int:
    """Return the count of numbers in a file; 0 for a file with a varying set of entries."""
    if path.endswith((*_TABLES, *_REQUEST_LISTS)):
        return 0
    return sum(1 for _ in _NUMBER.finditer(content))


def answer_size(key: str, answer: Json) -> int:
    """Return the count of entries in an answer; of an answer with a varying set, of its statistics only."""
    if not key.startswith(_VARYING_CALLS):
        return _entries(answer)
    # Statistics of the driver exist while the link is down as well, so fewer of them are a partial answer.
    statistics = answer.get("statistics") if isinstance(answer, dict) else None
    return len(statistics) if isinstance(statistics, dict) else 0


def _entries(answer: Json) -> int:
    if isinstance(answer, dict):
        values = list(answer.values())
        if values and all(isinstance(value, dict) for value in values):
            return 1 + min(map(_entries, values))  # a table: its set of devices varies
        return len(values) + sum(map(_entries, values))
    if isinstance(answer, list) and not any(isinstance(item, dict | list) for item in answer):
        return len(answer)
    return 0


def _exists(host: Host, path: str) -> bool:
    """True unless the system has no such path; a recording may contain only one of the two answers."""
    attempts: tuple[Callable[[str], object], ...] = (host.names, host.read, host.resolve)
    for attempt in attempts:
        try:
            attempt(path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
        return True
    return False
