"""Matching of Xids that both the kernel log (with text) and NVML (as a number) report.

The log's report counts, as it has the details. An Xid that only NVML reported is emitted once the log has
had time to report it too. NVML's reports come from the thread of the driver, the log's from another.

Xids after which a GPU needs recovery are remembered for the verdict on its health.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from railscope.catalog.xids import ACTION_ORDER, RECOVERY_ACTIONS, Judgement

SAME_NS = 3_000_000_000
"""Two seconds between both reports (NVIDIA's driver logs first), and one for the period of NVML reads."""
MAX_WAITING = 1000
MAX_GPUS = 64
MAX_REMEMBERED = 64
"""Maximum number of different Xids of one GPU."""
_HARD = frozenset(ACTION_ORDER[ACTION_ORDER.index("drain") :])
_RECOVERY_CHANGED = 154
_ALL_CLEAR = RECOVERY_ACTIONS[0].nvidia


@dataclass(frozen=True, slots=True)
class Sighting:
    """An Xid of a GPU as NVML reported it; it happened after `since_boot_ns` and until `boot_ns`.

    Instances are empty if it concerns no MIG device.
    """

    pci_address: str
    xid: int
    wall_ns: int
    boot_ns: int
    since_boot_ns: int
    gpu_instance: str = ""
    compute_instance: str = ""


@dataclass(frozen=True, slots=True)
class JudgedXid:
    """The last message of its kind about a GPU that requires an action."""

    number: int
    boot_ns: int
    judgement: Judgement

    @property
    def fatal(self) -> bool:
        """True if the GPU cannot continue in its present state."""
        return self.judgement.severity == "fatal"


class XidBook:
    """Matches Xids of NVML with those of the kernel log, one to one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: deque[tuple[str, int, int]] = deque(maxlen=MAX_WAITING)
        self._waiting: deque[Sighting] = deque()
        self._judged: dict[str, dict[object, JudgedXid]] = {}
        self.overlooked = 0
        """Number of NVML reports beyond the bound."""

    def logged(self, pci_address: str, xid: int, boot_ns: int) -> None:
        """Record an Xid from the kernel log."""
        with self._lock:
            for sighting in self._waiting:
                if _same(sighting, pci_address, xid, boot_ns):
                    self._waiting.remove(sighting)
                    return
            self._logged.append((pci_address, xid, boot_ns))

    def seen(self, sighting: Sighting) -> None:
        """Record an Xid from NVML."""
        with self._lock:
            for told in self._logged:
                if _same(sighting, *told):
                    self._logged.remove(told)
                    return
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(sighting)
            else:
                self.overlooked += 1

    def unlogged(self, now_boot_ns: int) -> list[Sighting]:
        """Return the Xids that NVML reported and the log did not, each once."""
        with self._lock:
            due = [s for s in self._waiting if now_boot_ns - s.boot_ns > SAME_NS]
            for sighting in due:
                self._waiting.remove(sighting)
            return due

    def judged(self, pci_address: str, told: JudgedXid) -> None:
        """Record a judged Xid; it is remembered if the GPU needs recovery after it.

        A flood of one Xid displaces no other: the last of each number and judgement is kept.
        """
        changed = told.number == _RECOVERY_CHANGED
        judgement = told.judgement
        kind = told.number if changed else (told.number, judgement.severity, judgement.actions)
        with self._lock:
            if pci_address not in self._judged and len(self._judged) >= MAX_GPUS:
                return
            known = self._judged.setdefault(pci_address, {})
            if changed and judgement.nvidia == _ALL_CLEAR:
                known.clear()
            known.pop(kind, None)
            if told.fatal or _HARD.intersection(judgement.actions):
                known[kind] = told
            for oldest in list(islice(known, max(0, len(known) - MAX_REMEMBERED))):
                del known[oldest]

    def driver_loaded(self, boot_ns: int) -> None:
        """Record a load of the driver: earlier faults no longer count."""
        with self._lock:
            for known in self._judged.values():
                for kind, told in tuple(known.items()):
                    if told.boot_ns <= boot_ns:
                        del known[kind]

    def remembered(self, pci_address: str) -> tuple[JudgedXid, ...]:
        """Return the Xids after which a GPU needs recovery, the latest last."""
        with self._lock:
            return tuple(self._judged.get(pci_address, {}).values())


def _same(sighting: Sighting, pci_address: str, xid: int, boot_ns: int) -> bool:
    """True if an Xid of the log may be this one: a hanging driver delivers its events late."""
    if (sighting.pci_address, sighting.xid) != (pci_address, xid):
        return False
    return sighting.since_boot_ns - SAME_NS <= boot_ns <= sighting.boot_ns + SAME_NS
