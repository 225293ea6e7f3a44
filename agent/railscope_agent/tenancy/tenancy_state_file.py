"""State file of tenancy: claims in force, names of GPUs and clock offsets, across restarts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from railscope.durable_files import DamagedFileError, read_json, write_json
from railscope.frame import NodeTimestamp
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy import claim_tracker, clock_history, devices

log = structlog.get_logger(__name__)

STATE_FILE = "claims-in-force.json"
STATE_SUBJECT = "stored claims"
SAVE_EVERY_NS = 60_000_000_000
"""Interval for saving the time of the last poll, which bounds the uncertainty of a later start."""


class TenancyState(msgspec.Struct, frozen=True):
    """Content of the file; another format is treated as damaged."""

    format: Literal[1]
    book: claim_tracker.ClaimTrackerState
    gpus: list[devices.GpuNames]
    clock: clock_history.ClockOffsets | None = None


class TenancyStateFile:
    """State file in the state directory. Blocking."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATE_FILE
        self._saved_ns: int | None = None
        self._damage = ""
        self._problem = ""

    @property
    def findings(self) -> tuple[ProbeFinding, ...]:
        """Findings about the file."""
        findings = []
        if self._damage:
            remedy = (
                "claims in force were reported again with other ids: check them in the collector"
            )
            findings.append(ProbeFinding(STATE_SUBJECT, ProbeVerdict.BROKEN, self._damage, remedy))
        if self._problem:
            remedy = "free disk space in the state directory: a restart would lose claims in force"
            findings.append(ProbeFinding(STATE_SUBJECT, ProbeVerdict.BROKEN, self._problem, remedy))
        return tuple(findings)

    def load(self) -> TenancyState | None:
        """Return the saved state; None without a file. A damaged file is renamed and reported."""
        try:
            state = read_json(self._path, TenancyState)
        except (OSError, DamagedFileError) as error:
            self._damage = str(error)
            log.error("claims_read_failed", file=str(self._path), problem=self._damage)
            return None
        return state

    def save(
        self,
        book: claim_tracker.ClaimTracker,
        gpus: Mapping[str, devices.GpuNames],
        clock: clock_history.ClockHistory,
        now: NodeTimestamp,
        *,
        names_changed: bool,
    ) -> None:
        """Save changes at once, and poll times at intervals."""
        due = self._saved_ns is None or now.boot_ns - self._saved_ns >= SAVE_EVERY_NS
        # After a failure each poll tries again: a restart meanwhile would lose the claims in force.
        if not (book.changed or clock.changed or names_changed or due or self._problem):
            return
        if not self._path.parent.is_dir():
            return  # a manual run may have none
        try:
            write_json(self._path, TenancyState(1, book.state, list(gpus.values()), clock.state))
        except OSError as error:
            problem = f"cannot write {self._path}: {error.strerror or error}"
            if problem != self._problem:
                log.error("claims_write_failed", file=str(self._path), problem=problem)
            self._problem = problem
            return
        self._problem, self._saved_ns = "", now.boot_ns
        # Only after the write: changes that were not written are not forgotten.
        book.changed = clock.changed = False
