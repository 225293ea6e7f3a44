"""`railscope diagnose --follow`: the diagnosis of a growing frame log, alone or for a collector.

The process waits for messages of the collector, for a signal, or a second; it has no other thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from railscope import durable_files, log_output
from railscope_collector.commands.node_clocks import DiagnoseError
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.jobs import ClaimedGpus
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.fleet.schemas import SchemaReader
from railscope_collector.framelog.log_follower import LogFollower
from railscope_collector.live_diagnosis import log_diagnosis
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine
from railscope_collector.live_diagnosis.diagnosis_input import InputBuffer
from railscope_collector.work_limits import limit_memory_arenas

WAIT_SECONDS = 1.0
"""Time after which a log is read again: it does not report that it has grown."""
READ_BYTES = 1 << 20
NICENESS = 5
"""Priority below that of the collector, whose acknowledgements have a deadline."""
log = structlog.get_logger(__name__)


class DiagnosisSite(NamedTuple):
    """Claims with the tenants and jobs of a site, its thresholds and its cabling, by the settings of its collector."""

    claims: ClaimedGpus
    thresholds: DetectorThresholds
    links: Sequence[LinkedPort]


def follow_alone(directory: Path, state: Path | None, from_ns: int, site: DiagnosisSite) -> None:
    """Diagnose a frame log without a collector until a signal. Raises DiagnoseError."""
    for name in ("frames", "state.sqlite"):
        if not (directory / name).exists():
            message = (
                f"no frame log in {directory}: expected a collector's state directory with `{name}`"
            )
            raise DiagnoseError(message)
    engine = DiagnosisEngine(
        state, SchemaReader(directory).read, site.thresholds, claims=site.claims
    )
    follower = LogFollower(directory / "frames")
    diagnosis = log_diagnosis.LogDiagnosis(
        engine, _write_line, follower, links=site.links, from_ns=from_ns
    )
    with _process(state) as signals:
        diagnosis.open(time.time_ns())
        while not signals.is_stopped:
            if not diagnosis.step(time.time_ns()):
                signals.wait(min(WAIT_SECONDS, diagnosis.wait_seconds(time.time_ns())))
        diagnosis.close()


def serve_collector(directory: Path, state: Path | None) -> None:
    """Diagnose what a collector receives, until it closes the input. Raises DiagnoseError."""
    engine = DiagnosisEngine(state, SchemaReader(directory).read)
    follower = LogFollower(directory / "frames", state_directory=directory)
    diagnosis = log_diagnosis.LogDiagnosis(engine, _write_line, follower, is_fed=True)
    limit_memory_arenas()
    _lower_priority()
    source = CollectorInput(sys.stdin.fileno())
    with _process(state) as signals:
        while not source.is_begun and not source.is_ended and not signals.is_stopped:
            signals.wait(WAIT_SECONDS, source.descriptor)
            source.apply_to(diagnosis)
        if source.is_begun:
            diagnosis.open(source.now_ns())
            while not source.is_ended and not signals.is_stopped:
                source.apply_to(diagnosis)
                now_ns = source.now_ns()
                if not diagnosis.step(now_ns):
                    wait_seconds = min(WAIT_SECONDS, diagnosis.wait_seconds(now_ns))
                    signals.wait(wait_seconds, source.descriptor)
            diagnosis.close()


class CollectorInput:
    """Messages of a collector, and its time, which continues by the monotonic clock."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.is_begun = self.is_ended = False
        self._buffer = InputBuffer()
        self._ahead_ns = 0

    def now_ns(self) -> int:
        """Return the time of the collector's clock."""
        return time.monotonic_ns() + self._ahead_ns

    def apply_to(self, diagnosis: log_diagnosis.LogDiagnosis) -> None:
        """Apply the messages that have arrived. Raises DiagnosisExchangeError."""
        with contextlib.suppress(BlockingIOError):  # nothing more has arrived
            while content := os.read(self.descriptor, READ_BYTES):
                self._buffer.add(content)
                for message in self._buffer.take():
                    self._ahead_ns = message.wall_ns - time.monotonic_ns()
                    self.is_begun = True
                    diagnosis.apply(message)
            self.is_ended = True


class StopSignals:
    """SIGTERM and SIGINT, which end a wait."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.settimeout(0)
        signal.set_wakeup_fd(self._waker.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        self.is_stopped = True

    def wait(self, seconds: float, *descriptors: int) -> None:
        """Wait for a signal, for something to read, or for a time."""
        if not self.is_stopped:
            select.select([self._woken.fileno(), *descriptors], [], [], seconds)


@contextlib.contextmanager
def _process(state: Path | None) -> Iterator[StopSignals]:
    """Lock the state, and handle the signals that stop the process. Raises DiagnoseError."""
    log_output.configure_logs("info")
    lock = -1
    try:
        if state is not None:
            durable_files.make_directory(state)
            lock = durable_files.lock_directory(state)
        yield StopSignals()
    except BlockingIOError as error:
        message = f"{state} is in use by another diagnosis; fix: stop it, or use another directory"
        raise DiagnoseError(message) from error
    except OSError as error:
        message = f"cannot diagnose: {error}"
        raise DiagnoseError(message) from error
    finally:
        if lock >= 0:
            os.close(lock)


def _lower_priority() -> None:
    try:
        os.nice(NICENESS)
    except PermissionError as error:  # the sandbox of the service may deny it
        log.debug("priority_unchanged", problem=str(error))


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
