"""Matching of the Xids of the kernel log with those of NVML.

Both the kernel log (with text) and NVML (as a number) report Xids. The log's report counts, as it
has the details. An Xid that only NVML reported is emitted once the log has had time to report it
too. NVML's reports come from the thread of the driver, the log's from another. Xids after which a
GPU needs recovery are retained for the verdict on its health.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

from railscope.catalog.xids import ACTION_ORDER, RECOVERY_ACTIONS, Judgement, sxids, xid, xids
from railscope_agent.host import MAX_GPUS
from railscope_agent.streams.start_reasons import find_remedy

SAME_NS = 3_000_000_000
"""Two seconds between both reports (NVIDIA's driver logs first), and one for the period of NVML reads."""
START_NS = 10_000_000_000
"""Maximum time from the reason for a failed start to the line about the failure; they are one call of the driver."""
MAX_WAITING = 1000
MAX_REMEMBERED = 64
"""Maximum number of different Xids of one GPU."""
_HARD = frozenset(ACTION_ORDER[ACTION_ORDER.index("drain") :])
UNNAMED_GPU = "unknown"
"""Address of a GPU that a line of the driver does not name."""
EVERY_GPU = "every"
"""Address of a report about the fabric, and so about all GPUs of the node."""
_OF_NO_GPU = (UNNAMED_GPU, EVERY_GPU)
_RECOVERY_CHANGED = 154
_ALL_CLEAR = RECOVERY_ACTIONS[0].nvidia
_NO_DEMAND = {_ALL_CLEAR, xid(_RECOVERY_CHANGED).immediate}
"""Terms of an Xid 154 that demands nothing, and of one without its text."""


@dataclass(frozen=True, slots=True)
class NvmlXid:
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
class InitFailure:
    """The driver could not start a GPU: line of the kernel log, and its time."""

    boot_ns: int
    line: str


@dataclass(frozen=True, slots=True)
class ActionableXid:
    """The last message of its kind about a GPU that requires an action.

    A line of the driver that declares the same as an Xid, without its number, counts as this Xid.
    """

    number: int
    boot_ns: int
    judgement: Judgement
    line: str = ""
    """Line without an Xid."""
    is_of_switch: bool = False
    """True for an SXid."""

    @property
    def is_fatal(self) -> bool:
        """True if the GPU cannot continue in its present state."""
        return self.judgement.severity == "fatal"


class XidMatcher:
    """Matches Xids of NVML with those of the kernel log, one to one."""

    def __init__(self) -> None:
        # The thread of the kernel log and that of the driver both record.
        self._lock = threading.Lock()
        # On a node whose NVML reports nothing, no entry is ever matched: the oldest are dropped.
        self._logged_xids: deque[tuple[str, int, int]] = deque(maxlen=MAX_WAITING)
        self._waiting: deque[NvmlXid] = deque()
        self._judgements: dict[str, dict[object, ActionableXid]] = {}
        self._init_failures: dict[str, InitFailure] = {}
        self.gpus_to_reset: frozenset[str] = frozenset()
        """PCI addresses of GPUs that NVML could not identify because they must be reset."""
        self.dropped_reports = 0
        """Number of NVML reports beyond the bound."""

    def record_logged(self, pci_address: str, xid: int, boot_ns: int) -> None:
        """Record an Xid from the kernel log."""
        with self._lock:
            for reported in self._waiting:
                if _is_same_xid(reported, pci_address, xid, boot_ns):
                    # One to one: two Xids of one number within seconds are two faults.
                    self._waiting.remove(reported)
                    return
            self._logged_xids.append((pci_address, xid, boot_ns))

    def record_nvml(self, reported: NvmlXid) -> None:
        """Record an Xid from NVML."""
        with self._lock:
            for logged in self._logged_xids:
                if _is_same_xid(reported, *logged):
                    self._logged_xids.remove(logged)
                    return
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(reported)
            else:
                self.dropped_reports += 1

    def take_unlogged(self, now_boot_ns: int) -> list[NvmlXid]:
        """Return the Xids that NVML reported and the log did not, each once."""
        with self._lock:
            due = [s for s in self._waiting if now_boot_ns - s.boot_ns > SAME_NS]
            for reported in due:
                self._waiting.remove(reported)
            return due

    def record_judgement(self, pci_address: str, reported: ActionableXid) -> None:
        """Record a judged Xid; it is remembered if the GPU needs recovery after it.

        A flood of one Xid displaces no other: the last of each number and judgement is kept, and the last of
        all numbers that the tables lack.

        The driver names a GPU at its fault, and repeats the fault without a name at each failed access
        (open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osapi.c, NV_CHECK_OK of GPU_IS_LOST). A report
        without a name is about the GPU with the same fault, also after the recovery of this GPU.
        """
        changed = reported.number == _RECOVERY_CHANGED
        judgement = reported.judgement
        kind: object = (reported.number, judgement.severity, judgement.actions)
        if changed or not _is_listed(reported.number):
            kind = changed
        with self._lock:
            if pci_address == UNNAMED_GPU and self._is_of_named_gpu(reported):
                return
            if pci_address not in _OF_NO_GPU:
                self._drop_unnamed(reported)
            if pci_address not in self._judgements and len(self._judgements) >= MAX_GPUS:
                return
            recorded = self._judgements.setdefault(pci_address, {})
            # Xid 154 states the recovery action of the driver: none means that what came before has been
            # dealt with.
            if changed and judgement.nvidia == _ALL_CLEAR:
                recorded.clear()
            # Removed and added again, which moves it to the end: the oldest kinds are dropped first.
            recorded.pop(kind, None)
            if reported.is_fatal or _HARD.intersection(judgement.actions) or _is_unclear(reported):
                recorded[kind] = reported
            for oldest in list(islice(recorded, max(0, len(recorded) - MAX_REMEMBERED))):
                del recorded[oldest]

    def _is_of_named_gpu(self, reported: ActionableXid) -> bool:
        return any(
            _is_same_fault(reported, other)
            for address, recorded in self._judgements.items()
            if address not in _OF_NO_GPU
            for other in recorded.values()
        )

    def _drop_unnamed(self, reported: ActionableXid) -> None:
        unnamed = self._judgements.get(UNNAMED_GPU, {})
        for kind, other in tuple(unnamed.items()):
            if _is_same_fault(reported, other):
                del unnamed[kind]

    def record_init_failure(self, pci_address: str, failure: InitFailure) -> None:
        """Record that the driver failed to start a GPU; a load of the driver does not clear that.

        A reason comes first, in some lines without the name of the GPU; the lines that follow state the failure only.
        """
        with self._lock:
            if not find_remedy(failure.line):
                for address in (pci_address, UNNAMED_GPU):
                    before = self._init_failures.get(address)
                    if (
                        before
                        and failure.boot_ns - before.boot_ns <= START_NS
                        and find_remedy(before.line)
                    ):
                        failure = replace(failure, line=before.line)
                        break
            if pci_address in self._init_failures or len(self._init_failures) < MAX_GPUS:
                self._init_failures[pci_address] = failure

    def init_failure(self, pci_address: str) -> InitFailure | None:
        """Return the last failure to start a GPU since the boot."""
        with self._lock:
            return self._init_failures.get(pci_address)

    def record_driver_load(self, boot_ns: int) -> None:
        """Record a load of the driver: earlier faults no longer count."""
        with self._lock:
            for recorded in self._judgements.values():
                for kind, reported in tuple(recorded.items()):
                    if reported.boot_ns <= boot_ns:
                        del recorded[kind]

    def actionable_xids(self, pci_address: str) -> tuple[ActionableXid, ...]:
        """Return the Xids after which a GPU needs recovery, the latest last."""
        with self._lock:
            return tuple(self._judgements.get(pci_address, {}).values())


def _is_same_fault(reported: ActionableXid, other: ActionableXid) -> bool:
    """True if both require the same action: Xid 154 of a GPU to be reset differs from one of a node to be rebooted."""
    return (reported.number, reported.judgement) == (other.number, other.judgement)


def _is_listed(number: int) -> bool:
    """True for a number of the vendor's tables."""
    return number in xids() or number in sxids()


def _is_unclear(reported: ActionableXid) -> bool:
    """True for a number that the vendor's tables lack, and for a recovery action that is no reset."""
    if reported.number == _RECOVERY_CHANGED:
        return reported.judgement.nvidia not in _NO_DEMAND
    return not _is_listed(reported.number)


def _is_same_xid(reported: NvmlXid, pci_address: str, xid: int, boot_ns: int) -> bool:
    """True if an Xid of the log may be this one: a hanging driver delivers its events late."""
    if (reported.pci_address, reported.xid) != (pci_address, xid):
        return False
    return reported.since_boot_ns - SAME_NS <= boot_ns <= reported.boot_ns + SAME_NS
