"""One Xid, told twice: by the kernel log with its text, and by NVML as a number.

The log's is the one that counts, as it has the detail. What only NVML told is given out once the
log has had time to tell it too. NVML's come from the thread of the driver, the log's from another.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

SAME_NS = 3_000_000_000
"""Two seconds apart (NVIDIA's driver logs first), and one for the period at which NVML is asked."""
MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Sighting:
    """An Xid of a GPU, as NVML told it. Instances are empty where it is about no MIG device."""

    pci_address: str
    xid: int
    wall_ns: int
    boot_ns: int
    gpu_instance: str = ""
    compute_instance: str = ""


class XidBook:
    """Matches the Xids of NVML with those of the kernel log, one with one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: deque[tuple[str, int, int]] = deque(maxlen=MOST_WAITING)
        self._waiting: deque[Sighting] = deque()
        self.overlooked = 0
        """Sightings of NVML beyond the bound."""

    def logged(self, pci_address: str, xid: int, boot_ns: int) -> None:
        """The kernel log told of an Xid."""
        with self._lock:
            for sighting in self._waiting:
                if (sighting.pci_address, sighting.xid) == (pci_address, xid) and _near(
                    sighting.boot_ns, boot_ns
                ):
                    self._waiting.remove(sighting)
                    return
            self._logged.append((pci_address, xid, boot_ns))

    def seen(self, sighting: Sighting) -> None:
        """NVML told of an Xid."""
        with self._lock:
            for told in self._logged:
                address, xid, boot_ns = told
                if (sighting.pci_address, sighting.xid) == (address, xid) and _near(
                    sighting.boot_ns, boot_ns
                ):
                    self._logged.remove(told)
                    return
            if len(self._waiting) < MOST_WAITING:
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


def _near(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) <= SAME_NS
