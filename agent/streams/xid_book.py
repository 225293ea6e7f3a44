"""One Xid, told twice: by the kernel log with its text, and by NVML as a number.

The log's is the one that counts, as it has the detail. What only NVML told is given out once the
log has had time to tell it too. NVML's come from the thread of the driver, the log's from another.

Those that a GPU needs help after are remembered for the verdict on its health.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from railscope.catalog.xids import ACTION_ORDER, RECOVERY_ACTIONS, Judgement

SAME_NS = 3_000_000_000
"""Two seconds apart (NVIDIA's driver logs first), and one for the period at which NVML is asked."""
MAX_WAITING = 1000
MAX_GPUS = 64
MAX_REMEMBERED = 64
"""Different Xids of one GPU."""
_HARD = frozenset(ACTION_ORDER[ACTION_ORDER.index("drain") :])
_RECOVERY_CHANGED = 154
_ALL_CLEAR = RECOVERY_ACTIONS[0].nvidia


@dataclass(frozen=True, slots=True)
class Sighting:
    """An Xid of a GPU, as NVML told it; it happened after `since_boot_ns` and until `boot_ns`.

    Instances are empty where it is about no MIG device.
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
    """The last message of its kind about a GPU that asks for something."""

    number: int
    boot_ns: int
    judgement: Judgement

    @property
    def fatal(self) -> bool:
        """Whether the GPU cannot go on as it is."""
        return self.judgement.severity == "fatal"


class XidBook:
    """Matches the Xids of NVML with those of the kernel log, one with one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: deque[tuple[str, int, int]] = deque(maxlen=MAX_WAITING)
        self._waiting: deque[Sighting] = deque()
        self._judged: dict[str, dict[object, JudgedXid]] = {}
        self.overlooked = 0
        """Sightings of NVML beyond the bound."""

    def logged(self, pci_address: str, xid: int, boot_ns: int) -> None:
        """The kernel log told of an Xid."""
        with self._lock:
            for sighting in self._waiting:
                if _same(sighting, pci_address, xid, boot_ns):
                    self._waiting.remove(sighting)
                    return
            self._logged.append((pci_address, xid, boot_ns))

    def seen(self, sighting: Sighting) -> None:
        """NVML told of an Xid."""
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
        """Those that NVML told of and the log did not, each once."""
        with self._lock:
            due = [s for s in self._waiting if now_boot_ns - s.boot_ns > SAME_NS]
            for sighting in due:
                self._waiting.remove(sighting)
            return due

    def judged(self, pci_address: str, told: JudgedXid) -> None:
        """An Xid was told and judged; it is remembered if the GPU needs help after it.

        A flood of one Xid displaces no other: of each number and judgement the last is kept.
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
        """The driver was loaded: what was wrong before is no longer known to be."""
        with self._lock:
            for known in self._judged.values():
                for kind, told in tuple(known.items()):
                    if told.boot_ns <= boot_ns:
                        del known[kind]

    def remembered(self, pci_address: str) -> tuple[JudgedXid, ...]:
        """The Xids after which a GPU needs help, the latest last."""
        with self._lock:
            return tuple(self._judged.get(pci_address, {}).values())


def _same(sighting: Sighting, pci_address: str, xid: int, boot_ns: int) -> bool:
    """Whether the log's Xid may be this one: a driver that hangs gives its events late."""
    if (sighting.pci_address, sighting.xid) != (pci_address, xid):
        return False
    return sighting.since_boot_ns - SAME_NS <= boot_ns <= sighting.boot_ns + SAME_NS
