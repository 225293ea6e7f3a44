"""The collector's clock: the boot clock plus a reference that is robust against a wrong wall clock.

now = reference + CLOCK_BOOTTIME, where the reference is wall clock - boot clock as of when it was trusted.
It is stored across restarts within one boot and follows the wall clock by at most 500 ppm, as NTP slews it.
A wall clock that deviates from it by more than a second is *suspect*, and so is one that at the start of a
boot is before the newest durable frame, or that most of three or more nodes contradict in one direction by
over a minute. A boot that begins over an hour after the reference was last stored is *unconfirmed* until a
node agrees within a minute; until then one or two nodes that all disagree in one direction contradict it,
too. While the clock is suspect or unconfirmed, no ledger day is finalized and no period is closed. While it
is suspect, frames get timestamps from the reference and name the start of that state. It ends when the wall
clock returns, or when an administrator accepts it: then the frames of that time are assigned new timestamps
by the accepted reference.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import msgspec
import structlog

from railscope import durable_files, untrusted_text
from railscope.timestamps import SECOND_NS
from railscope_collector import CollectorError

log = structlog.get_logger(__name__)

FILE = "clock"
ACCEPTED_FILE = "clock.accepted"
MAX_STEP_NS = SECOND_NS
# The kernel's limit for the frequency that NTP may correct (MAXFREQ in timex.h).
MAX_SLEW_PPM = 500
MAX_NODE_OFFSET_NS = 60 * SECOND_NS
# The smallest number in which one node with a wrong clock is outvoted.
MIN_NODES = 3
MAX_UNSEEN_NS = 3600 * SECOND_NS
# Bounds the file. A correction is needed while frames of its time are in the frame log.
MAX_CORRECTIONS = 64
STORE_EVERY_NS = 60 * SECOND_NS
POLL_EVERY_NS = SECOND_NS
_ADVICE = "correct the clock, or run `railscope collector accept-clock`"


class ClockFileError(CollectorError, ValueError):
    """The stored state of the clock cannot be read; the message states the reason."""


class Correction(msgspec.Struct, frozen=True):
    """An accepted step: frames received while the clock was suspect are shifted by `delta_ns`.

    `since_ns` is the start of that time by the previous reference; such frames contain it.
    """

    since_ns: int
    delta_ns: int


class ClockState(msgspec.Struct):
    """Stored state of the clock: the boot, its reference, and since when and why it is suspect."""

    boot_id: str
    reference_ns: int
    problem: str = ""
    since_ns: int = 0
    kept_ns: int = 0
    """Time of this write by the reference."""
    is_unconfirmed: bool = False
    """True until a node agrees, in a boot that began long after the reference was last stored."""
    is_overruled: bool = False
    """True while the nodes contradict a clock that an administrator accepted."""
    corrections: list[Correction] = []

    @property
    def hold_reason(self) -> str:
        """Reason why nothing may be finalized or closed; empty if there is none."""
        unconfirmed = "no node has confirmed the clock since the start of the machine"
        return self.problem or (unconfirmed if self.is_unconfirmed else "")


def boot_clock_ns() -> int:
    """Nanoseconds since boot, including suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def this_boot() -> str:
    """Identity of this boot (random(4)); empty if the kernel does not expose it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(slots=True)
class CollectorClock:
    """The one clock for everything that is stored, finalized or billed."""

    directory: Path
    offsets_ns: Callable[[int], Collection[int]] = lambda _now_ns: ()
    """Lead of the wall clock of each node that reports at a time over this clock, in nanoseconds."""
    on_change: list[Callable[[ClockState], None]] = field(default_factory=list)
    """Called when the clock becomes suspect and when it recovers."""
    wall_ns: Callable[[], int] = time.time_ns
    boot_ns: Callable[[], int] = boot_clock_ns
    boot_id: str = field(default_factory=this_boot)
    _state: ClockState | None = None
    is_replaced: bool = False
    """True if a restart of the collector must assign frames new timestamps."""
    _polled_ns: int = 0
    _stored_ns: int = 0
    _is_open: bool = False
    _lock: Lock = field(default_factory=Lock)
    """Held while the file is written: a step is stored at once, the reference periodically in a thread."""

    def open(self, newest_ns: int = 0, *, is_lost: bool = False) -> None:
        """Read the stored reference, or initialize it from the wall clock. Blocking; raises OSError.

        `newest_ns` is the receipt time of the newest durable frame. If the stored reference `is_lost`, the clock is
        unconfirmed.
        """
        boot_ns = self.boot_ns()
        try:
            state = read_state(self.directory)
        except ClockFileError as error:
            log.error("clock_read_failed", problem=str(error))
            state = None
        # A reference belongs to one boot: the boot clock starts again at zero.
        if state is None or state.boot_id != self.boot_id or not self.boot_id:
            state = self._new_state(state, newest_ns, boot_ns, is_unconfirmed=is_lost)
        self._state, self._polled_ns, self._is_open = state, boot_ns, True
        self._store(boot_ns)

    def _new_state(
        self, previous: ClockState | None, newest_ns: int, boot_ns: int, *, is_unconfirmed: bool
    ) -> ClockState:
        """Return the initial state of a boot."""
        wall_ns = self.wall_ns()
        state = ClockState(self.boot_id, wall_ns - boot_ns, is_unconfirmed=is_unconfirmed)
        if previous:
            state.corrections = previous.corrections
            # After a long time off, a clock whose battery failed cannot be distinguished from a correct one.
            state.is_unconfirmed = wall_ns - max(previous.kept_ns, newest_ns) > MAX_UNSEEN_NS
        state.since_ns = wall_ns if state.is_unconfirmed else 0
        if wall_ns < newest_ns:
            state.reference_ns = newest_ns - boot_ns
            state.problem = "the wall clock is before the newest frame of the frame log"
            state.since_ns = newest_ns
            log.error("clock_suspected", problem=state.problem, advice=_ADVICE)
        return state

    def now_ns(self) -> int:
        """Time by the reference, in nanoseconds since the epoch."""
        return self._current().reference_ns + self.boot_ns()

    @property
    def problem(self) -> str:
        """Reason why the wall clock is suspect; empty if it is not."""
        return self._current().problem

    @property
    def hold_reason(self) -> str:
        """Reason why nothing may be finalized or stored permanently; empty if there is none."""
        replaced = "frames must be given new timestamps by the accepted clock"
        return self._current().hold_reason or (replaced if self.is_replaced else "")

    @property
    def doubted_since_ns(self) -> int:
        """Start of the time in which the wall clock is in doubt, by the reference; 0 if it is not."""
        state = self._current()
        return state.since_ns if state.hold_reason else 0

    def _current(self) -> ClockState:
        if self._state is None:
            self._state = ClockState(self.boot_id, self.wall_ns() - self.boot_ns())
        state, boot_ns = self._state, self.boot_ns()
        passed_ns = boot_ns - self._polled_ns
        drift_ns = self.wall_ns() - boot_ns - state.reference_ns
        # On each call and not with the poll: a frame that is received after the step must be marked.
        if abs(drift_ns) > MAX_STEP_NS and not state.problem:
            step = f"the wall clock was stepped by {drift_ns / SECOND_NS:+.3f} s"
            self._suspect(state, step, boot_ns)
        if passed_ns >= POLL_EVERY_NS:
            self._polled_ns = boot_ns
            self._compare(state, drift_ns, passed_ns, boot_ns)
        return state

    def _compare(self, state: ClockState, drift_ns: int, passed_ns: int, boot_ns: int) -> None:
        """Follow the wall clock, or check if the reason to suspect it still applies."""
        offsets_ns = list(self.offsets_ns(state.reference_ns + boot_ns))
        contradicted = _find_contradiction(offsets_ns, is_unconfirmed=state.is_unconfirmed)
        # An administrator's decision stands while the same nodes contradict it, and no longer.
        state.is_overruled &= bool(contradicted)
        if state.is_overruled:
            contradicted = ""
        if any(map(_is_near, offsets_ns)) and not contradicted:
            state.since_ns = state.since_ns if state.problem else 0
            state.is_unconfirmed = False
        accepted = self.directory / ACCEPTED_FILE
        if state.hold_reason and accepted.exists():
            # First: if it cannot be deleted, the request must not be applied at each poll.
            accepted.unlink(missing_ok=True)
            self._accept(state, drift_ns if state.problem else 0, boot_ns)
            return
        if state.problem:
            if abs(drift_ns) <= MAX_STEP_NS and not contradicted:
                self._trust(state, "the wall clock returned", boot_ns)
            return
        if contradicted:
            self._suspect(state, contradicted, boot_ns)
            return
        # In proportion to the time passed: the clock follows NTP however often it is read.
        bound_ns = passed_ns * MAX_SLEW_PPM // 1_000_000
        state.reference_ns += max(-bound_ns, min(bound_ns, drift_ns))

    @property
    def is_store_due(self) -> bool:
        """True if the reference was last stored long ago, and is not in doubt."""
        is_old = self.boot_ns() - self._stored_ns >= STORE_EVERY_NS
        return is_old and self._state is not None and not self._state.problem

    def store(self) -> None:
        """Store the reference. Blocking."""
        self._store(self.boot_ns())

    def _accept(self, state: ClockState, drift_ns: int, boot_ns: int) -> None:
        """Accept the current wall clock, and store the correction for the frames received since."""
        if drift_ns:
            correction = Correction(state.since_ns, drift_ns)
            state.corrections = [*state.corrections, correction][-MAX_CORRECTIONS:]
            self.is_replaced = True
        state.reference_ns += drift_ns
        state.is_unconfirmed, state.is_overruled = False, True
        self._trust(state, "accepted by an administrator", boot_ns)

    def _suspect(self, state: ClockState, problem: str, boot_ns: int) -> None:
        state.problem = problem
        # A doubt that began earlier keeps its start, by which its frames are found.
        state.since_ns = state.since_ns or state.reference_ns + boot_ns
        log.error("clock_suspected", problem=problem, advice=_ADVICE)
        self._store_change(state, boot_ns)

    def _trust(self, state: ClockState, reason: str, boot_ns: int) -> None:
        log.warning("clock_trusted", reason=reason, previous_problem=state.problem)
        state.problem, state.since_ns = "", 0
        self._store_change(state, boot_ns)

    def _store_change(self, state: ClockState, boot_ns: int) -> None:
        self._store(boot_ns)
        for listener in self.on_change:
            listener(state)

    def _store(self, boot_ns: int) -> None:
        with self._lock:
            self._stored_ns = boot_ns
            if self._state is not None:
                self._state.kept_ns = self._state.reference_ns + boot_ns
            if not self._is_open or self._state is None:
                return  # this collector may not write the file
            try:
                durable_files.write_durably(self.directory / FILE, encode_state(self._state))
            except OSError as error:
                log.warning("clock_write_failed", problem=str(error))


def _find_contradiction(offsets_ns: Sequence[int], *, is_unconfirmed: bool) -> str:
    """Return the reason why the nodes contradict the clock; empty if they do not."""
    count = len(offsets_ns)
    for sign, relation in ((1, "ahead of"), (-1, "behind")):
        distant = sum(sign * offset > MAX_NODE_OFFSET_NS for offset in offsets_ns)
        only_few = is_unconfirmed and count < MIN_NODES and distant == count
        if distant and (only_few or (count >= MIN_NODES and 2 * distant > count)):
            return f"{distant} of {count} nodes are over a minute {relation} the collector"
    return ""


def _is_near(offset_ns: int) -> bool:
    return abs(offset_ns) <= MAX_NODE_OFFSET_NS


def encode_state(state: ClockState) -> bytes:
    """Encode the file: the state as a line of JSON, and the CRC-32 of that line."""
    content = msgspec.json.encode(state)
    return b"%b\n%08x\n" % (content, zlib.crc32(content))


def read_state(directory: Path) -> ClockState | None:
    """Return the state that a collector stored in its state directory; None if there is no file.

    Raises ClockFileError.
    """
    try:
        content, _, checksum = (directory / FILE).read_bytes().partition(b"\n")
        state = msgspec.json.decode(content, type=ClockState)
    except FileNotFoundError:
        return None
    except (OSError, *untrusted_text.DECODING_ERRORS) as error:
        message = f"cannot read {directory / FILE}: {error}"
        raise ClockFileError(message) from error
    if checksum != b"%08x\n" % zlib.crc32(content):
        message = f"damaged file {directory / FILE}: its checksum does not match"
        raise ClockFileError(message)
    return state
