"""Reads one source on its thread: probe when needed, read, make a frame.

Everything here runs on the thread of the source's family. The event loop receives an immutable outcome.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import gt, lt

from railscope import counter_unwrap
from railscope.catalog.declare import MARKS, MetricKind
from railscope.frame import Column, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import PRESENT, Absent, to_stored
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    counter_checks,
    guard,
    known_columns,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sampling.meter import ProcessMeter, ReadCost, Stopwatch

# New devices appear within a minute; a probe costs as much as many reads.
REPROBE_NS = 60_000_000_000
# A device in reset takes seconds to answer: a probe in every period would only add load to a sick driver.
REPROBE_AFTER_LOSS_NS = 5_000_000_000
_TRANSIENT_REASONS = {
    reason.value for reason in (Absent.GONE, Absent.TIMEOUT, Absent.ERROR, Absent.RESET_REQUIRED)
}
"""Reasons that a new probe may resolve; permissions do not change from second to second."""
_SIGN_BYTE = 7 if sys.byteorder == "little" else 0
_FAILURE_REASONS = {Absent.DENIED.value, *_TRANSIENT_REASONS}


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """Result of one read: a frame (None if the source has no columns) or a problem."""

    frame: Frame | None
    findings: tuple[probe_result.ProbeFinding, ...]
    cost: ReadCost
    problem: str = ""
    missing_count: int = 0
    """Number of columns that should have a value and have none."""
    is_intermediate: bool = False
    """True if the source only sampled: its previous readings stay valid."""


class SourceReader:
    """A source with the plan of its last probe."""

    def __init__(
        self,
        sampled_source: source.Source,
        host: Host,
        origin: FrameOrigin,
        meter: ProcessMeter | None = None,
        reprobe_ns: int = REPROBE_NS,
    ) -> None:
        self.source = sampled_source
        self.reprobe_ns = reprobe_ns
        self._host = host if isinstance(host, guard.GuardedHost) else guard.GuardedHost(host)
        self._origin = origin
        self._meter = meter or ProcessMeter()
        self._inventory: probe_result.ProbeResult | None = None
        self._schema = Schema(self.source.name, ())
        self._limits: tuple[list[int], list[int]] = [], []
        """Lowest and highest plausible value of each column."""
        self._checks = counter_checks.CounterChecks()
        self._known = known_columns.KnownColumns(())
        self._frames: tuple[Frame, ...] = ()
        """First and last frame with the present columns."""
        self._width = 0
        """Number of the source's own columns; those that the probe did not find follow them."""
        self._pick_ordered = counter_unwrap.column_picker([])
        self._sequence = 0
        self._probe_due_ns = 0

    def run(self) -> ReadOutcome:
        """Probe if due, read, and make a frame."""
        watch = Stopwatch(self._host.clock, self._meter)
        started_ns, probe = watch.boot_ns, None
        try:
            if self._is_probe_due(started_ns):
                self._probe(started_ns)
                probe = watch.lap()
            # Taken after the probe, which can take long, and before the read: a value is never older than its
            # timestamp.
            self._host.read_times.by_device.clear()
            timestamp = self._host.clock.now()
            check = partial(self._checks.read, timestamp.boot_ns)
            table = row_builder.RowBuilder(self._width, check)
            self.source.read(self._host, table)
        except (OSError, NvmlError) as error:
            finding, reason = (
                _failed_outcome(self.source.name, error),
                answer_readings.reason_for(error),
            )
            return self._failure(finding, reason, ReadCost(watch.lap(), probe))
        except Exception as error:  # noqa: BLE001 - a fault of one source must not end the others
            problem = f"fault in the source: {type(error).__name__}: {error}"
            finding = probe_result.ProbeFinding(
                self.source.name, probe_result.ProbeVerdict.BROKEN, problem, "report this as a bug"
            )
            return self._failure(finding, Absent.ERROR, ReadCost(watch.lap(), probe))
        if table.needs_probe:
            self._probe_due_ns = 0
        if table.is_intermediate:
            cost = ReadCost(watch.lap(), probe)
            return ReadOutcome(None, self._inventory_findings, cost, is_intermediate=True)
        table.check_counters()
        frame = self._frame(table, timestamp)
        missing_count = 0
        if frame:
            missing_count = sum(frame.reasons.count(code) for code in _FAILURE_REASONS)
            is_transient = any(  # the frame may have selected columns only
                code in frame.reasons or code in table.reasons for code in _TRANSIENT_REASONS
            )
            if is_transient and not table.needs_probe:
                soon = started_ns + REPROBE_AFTER_LOSS_NS
                self._probe_due_ns = min(self._probe_due_ns, soon)
        return ReadOutcome(
            frame, self._inventory_findings, ReadCost(watch.lap(), probe), "", missing_count
        )

    @property
    def _inventory_findings(self) -> tuple[probe_result.ProbeFinding, ...]:
        return self._inventory.findings if self._inventory else ()

    def forget_plan(self) -> None:
        """Make the next run probe: a probe or a read was interrupted."""
        self._inventory = None

    def close(self) -> None:
        """Release the resources of the source; the next run would probe again."""
        self._inventory = None
        with suppress(OSError):  # a device that is gone closes its files in spite of the error
            self.source.close()

    def _failure(
        self, finding: probe_result.ProbeFinding, reason: Absent, cost: ReadCost
    ) -> ReadOutcome:
        """Return the outcome of a read that failed as a whole: every column is absent for its reason."""
        self._inventory = None
        # The columns of the last probe stay, absent with the reason: removing them would look as if the
        # devices had left.
        count = len(self._schema.columns)
        frame = None
        if count:
            table = row_builder.RowBuilder(self._width)
            table.put_none(0, self._width, reason)
            frame = self._frame(table, self._host.clock.now())
        return ReadOutcome(frame, (finding,), cost, finding.detail, count)

    def _is_probe_due(self, now_ns: int) -> bool:
        return self._inventory is None or now_ns >= self._probe_due_ns

    def _probe(self, now_ns: int) -> None:
        self._host.failures = {}
        inventory = self.source.probe(self._host)
        self._probe_due_ns = now_ns + self.reprobe_ns
        completed = self._known = self._known.complete(
            inventory, self._host.failures, self._host, self._frames, now_ns
        )
        self._inventory = inventory
        self._checks.find_columns(inventory.columns, completed.columns)
        self._width = len(inventory.columns)
        selection = self.source.selection
        all_columns, described = completed.columns, completed.columnless_entities
        order = Schema.ordered(all_columns)
        if selection:
            selected = [place for place in order if all_columns[place][0].name in selection]
            order = selected or order[:1]  # a source without any column would count as unsupported
            described = tuple(dict.fromkeys([*described, *(about for _, about in all_columns)]))
        columns = tuple(all_columns[position] for position in order)
        self._pick_ordered = counter_unwrap.column_picker(order)
        # The same object is kept, so that receivers compare schemas by identity, and none is sent again.
        if columns != self._schema.columns or described != self._schema.columnless_entities:
            self._schema = Schema(self.source.name, columns, described)
            steps = [metric.valid_steps for metric, _ in columns]
            self._limits = [each[0] for each in steps], [each[-1] for each in steps]

    def _frame(self, table: row_builder.RowBuilder, timestamp: NodeTimestamp) -> Frame | None:
        events = tuple(table.events)
        if not self._schema.columns and not events:
            return None
        if hidden := self._known.hidden_reasons:
            table.values += [0] * len(hidden)
            table.reasons += hidden
        self._sequence += 1
        has_absent = table.reasons.count(PRESENT) < len(table.reasons)
        width = len(self._schema.columns)  # less than that of the row if metrics are selected
        reasons = bytearray(self._pick_ordered(table.reasons) if has_absent else width)
        values = self._pick_ordered(table.values)
        values = _stored_values(values, reasons, self._schema.columns, self._limits)
        frame = Frame(
            self._origin,
            self._schema,
            self._sequence,
            timestamp,
            values,
            # Usually all values are present: the empty string saves a byte per column in memory and on the
            # wire.
            b"" if reasons.count(PRESENT) == len(reasons) else bytes(reasons),
            events,
            self._host.read_times.delays(self._schema, timestamp.boot_ns),
        )
        is_first = not self._frames or self._frames[0].schema is not self._schema
        self._frames = (frame if is_first else self._frames[0], frame)
        return frame


def _stored_values(
    values: Sequence[int],
    reasons: bytearray,
    columns: Sequence[Column],
    limits: tuple[Sequence[int], Sequence[int]],
) -> array[int]:
    """Return values as stored in frames; an error for those that the quantity cannot have, or out of 64 bits."""
    with suppress(TypeError):  # of a value that is no number
        lowest, highest = limits
        # Compared in C; single columns are looked at only if one of them is implausible.
        if (
            any(map(lt, values, lowest))
            or any(map(gt, values, highest))
            or not MARKS.isdisjoint(values)
        ):
            values = list(values)
            for position, (value, (metric, _)) in enumerate(zip(values, columns, strict=True)):
                if not metric.accepts(value):
                    values[position], reasons[position] = 0, Absent.ERROR.value
    try:
        stored = array("q", values)
        # The highest byte of a negative number has its top bit set, so it is not ASCII: one call checks all
        # columns.
        if stored.tobytes()[_SIGN_BYTE :: stored.itemsize].isascii():
            return stored  # without a negative number
    except (OverflowError, TypeError):
        stored = array("q", [0]) * len(values)
        for position, value in enumerate(values):
            try:
                stored[position] = to_stored(value)
            except (OverflowError, TypeError):
                reasons[position] = Absent.ERROR.value
        values = [value if isinstance(value, int) else 0 for value in values]
    # -5 would be sent as 2**64 - 5, as counters have no sign on the wire.
    for position, value in enumerate(values):
        if value < 0 and columns[position][0].kind is MetricKind.COUNTER:
            stored[position], reasons[position] = 0, Absent.ERROR.value
    return stored


def _failed_outcome(name: str, error: OSError | NvmlError) -> probe_result.ProbeFinding:
    denied = answer_readings.reason_for(error) is Absent.DENIED
    verdict = probe_result.ProbeVerdict.DENIED if denied else probe_result.ProbeVerdict.BROKEN
    remedy = answer_readings.nvml_remedy(error.code) if isinstance(error, NvmlError) else ""
    # An error that ends the read of a source of GPUs is one of NVML: one finding for all of these sources.
    subject = "NVML" if isinstance(error, NvmlError) else name
    return probe_result.ProbeFinding(subject, verdict, str(error), remedy)
