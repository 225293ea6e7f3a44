"""`railscope agent replay`: frames of captures, as an agent would have read them.

The sources run at each moment of a capture, one after the other on one thread, by the clock of the
recording. Nothing waits, so that hours of a node are read in minutes.
"""

from __future__ import annotations

import gc
import hashlib
import re
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from railscope import __version__, batch_encoding, capture, log_output, settings, wire
from railscope.capture import (
    DAMAGED_STATUS,
    Capture,
    CaptureError,
    CaptureMetadata,
    CaptureMoment,
    Json,
)
from railscope.catalog import METRICS
from railscope.frame import Frame, FrameOrigin, NodeTimestamp
from railscope.settings import SettingsError
from railscope.shapes import schema_parts
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope_agent.config import PREFIX, AgentSettings, BurstSettings
from railscope_agent.host.recorded_host import MomentAnswers, RecordedClock, RecordedHost
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling import guard as guards
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import REPROBE_NS, SourceReader
from railscope_agent.sampling.status import UNSUPPORTED, SourceGrader, SourceState
from railscope_agent.shipping import EventNumbering
from railscope_agent.shipping.envelope_limits import split_into_envelopes
from railscope_agent.sources.gpu_verdicts import GpuVerdictSource
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.tenancy import ClaimSource
from railscope_agent.streams.xid_matcher import XidMatcher

SAMPLE_NS = 400_000_000
"""Moments within this time are one sample: a recording agent takes some time for its reads."""
EVERY_SAMPLE_NS = 5 * SECOND_NS
"""Sources with at most this period are read at every sample."""
STATE_SOURCES = {ClaimSource.name, GpuVerdictSource.name, GpuSharingSource.name}
"""Sources of states that no other source reads between two of their own reads: they keep their period."""
REPROBE_SAME_NS = 900 * SECOND_NS
"""Time after which a source searches for devices although none seems to have come or gone."""
SAMPLES_OF_AN_ENVELOPE = 64
GC_ALLOCATIONS = 100_000
"""Each moment replaces thousands of answers, without reference cycles: searches for cycles can be rare."""
BEGIN_NS = 10 * SECOND_NS
"""Time in which a recording agent finds its devices."""
_LENGTH = struct.Struct("<I")
_CALL = re.compile(r"(\w+)\.(\w+)\(([^,)]*)")
"""Host interface, function and first argument in the key of a call."""


@dataclass(slots=True)
class _ReplayedSource:
    """A source, its reader, and the time of its next read."""

    status: SourceState
    reader: SourceReader
    due_ns: int = 0
    has_new_devices: bool = False
    """True if devices may have come or gone since the last probe."""
    _probed_ns: int = 0

    def read(self, now: NodeTimestamp, grader: SourceGrader) -> Frame | None:
        """Return the next frame."""
        if self.has_new_devices and now.boot_ns - self._probed_ns >= REPROBE_NS:
            self.reader.forget_plan()
        outcome = self.reader.run()
        grader.record_return(self.status, outcome, now)
        if outcome.cost.probe:
            self.has_new_devices, self._probed_ns = False, now.boot_ns
        return outcome.frame

    def plan(self, now_ns: int) -> None:
        """Set the next time: a tenth earlier, as samples have some jitter."""
        period_ns = self.status.period_ns
        if self.status.state == UNSUPPORTED:
            period_ns = max(period_ns, REPROBE_NS)
        every_sample = period_ns <= EVERY_SAMPLE_NS and self.status.source.name not in STATE_SOURCES
        self.due_ns = 0 if every_sample else now_ns + period_ns - period_ns // 10


class ReplayedNode:
    """Sources of a node whose answers come moment by moment: the named ones, or all that an agent ships."""

    def __init__(
        self,
        about: CaptureMetadata,
        settings: AgentSettings,
        names: Collection[str] = (),
        metrics: Collection[str] = (),
        min_period_seconds: float = 0.0,
    ) -> None:
        """Raises SettingsError for an unknown source or metric."""
        self.origin = _origin(about)
        self.clock = RecordedClock(about)
        self._answers = MomentAnswers()
        self.host = RecordedHost(
            Capture(about, ()), self.clock, lambda: self.clock.offset_ns, self._answers, pause=None
        )
        self._hung = guards.HungCalls()
        self._pending: dict[str, str] = {}
        """Device of each call without a result, by the key of the call."""
        self._grader = SourceGrader()
        self._numbering = EventNumbering()
        self.statuses: dict[str, SourceState] = {}
        # The moments of a capture are usually further apart than the windows of burst sampling.
        settings = msgspec.structs.replace(
            settings, node=about.node, bursts=BurstSettings(enabled=False)
        )
        # One guard for all sources: those of a sample share the scan of the network devices.
        guard = guards.GuardedHost(self.host, self._hung)
        self._sources: list[_ReplayedSource] = []
        xids = XidMatcher()
        verdicts = GpuVerdictSource(lambda: self.statuses, xids)
        sources = machine_sources(settings, xids, [verdicts])
        selected = _select(sources, names, settings.metrics.disabled_sources.split())
        selection = _selected_metrics(metrics)
        for source in selected:
            source.selection = selection
            source.period_seconds = max(source.period_seconds, min_period_seconds)
            status = self.statuses[source.name] = SourceState(source)
            reader = SourceReader(source, guard, self.origin, reprobe_ns=REPROBE_SAME_NS)
            self._sources.append(_ReplayedSource(status, reader))

    def advance(self, moment: CaptureMoment) -> None:
        """Apply the differences of a moment."""
        self.clock.go_to(moment.offset_ns)
        has_new_devices = self._answers.advance(moment)
        is_other_hung = self._update_hung_calls(moment)
        is_begin = moment.offset_ns < BEGIN_NS
        for source in self._sources:
            source.has_new_devices |= has_new_devices
            # An agent has found all devices when it begins to ship. A source without devices does not wait
            # for its next probe.
            if has_new_devices and (is_begin or source.status.state == UNSUPPORTED):
                source.reader.forget_plan()
                source.due_ns = 0
            if is_other_hung:
                source.reader.forget_plan()

    def _update_hung_calls(self, moment: CaptureMoment) -> bool:
        """Record the devices of calls without a result; return True if they changed."""
        before = dict(self._pending)
        for section in capture.SECTIONS:
            answers: dict[str, Json] = getattr(moment, section)
            for key in before.keys() & answers.keys():
                del self._pending[key]
            if capture.PENDING in answers.values():
                keys = (key for key, answer in answers.items() if answer == capture.PENDING)
                self._pending |= {key: _device(section, key) for key in keys}
        if self._pending == before:
            return False
        hung, now_ns = self._hung.by_device, self.clock.now().boot_ns
        calls = {
            device: guards.HungCall(device, key, now_ns) for key, device in self._pending.items()
        }
        # The time since when a call is hung remains that of its first moment.
        self._hung.by_device = {device: hung.get(device, call) for device, call in calls.items()}
        return True

    def read_sources(self) -> list[Frame]:
        """Return the frames of the sources that are due at this moment."""
        now = self.clock.now()
        frames = []
        for source in self._sources:
            if source.due_ns > now.boot_ns:
                continue
            frame = source.read(now, self._grader)
            source.plan(now.boot_ns)
            if frame:
                frames.append(self._numbering.number_events(frame))
        # Events of the agent itself are not part of a capture.
        self._grader.events.clear()
        return frames


class CaptureReplay(ReplayedNode):
    """Frames of a capture."""

    def __init__(
        self,
        directory: Path,
        settings: AgentSettings,
        names: Collection[str] = (),
        metrics: Collection[str] = (),
    ) -> None:
        """Raises CaptureError for invalid metadata, and SettingsError for an unknown source or metric."""
        super().__init__(capture.read_metadata(directory), settings, names, metrics)
        self._directory = directory
        self.problem: CaptureError | None = None
        """Reason why the timeline could not be read to its end; known after the last frame."""

    def samples(self) -> Iterator[list[Frame]]:
        """Yield the frames of one sample after another."""
        end_ns: int | None = None
        for moment in self._read_moments():
            if end_ns is None:
                end_ns = moment.offset_ns + SAMPLE_NS
            elif moment.offset_ns >= end_ns:
                yield self.read_sources()
                end_ns = moment.offset_ns + SAMPLE_NS
            self.advance(moment)
        if end_ns is not None:
            yield self.read_sources()

    def envelopes(self, samples: int = SAMPLES_OF_AN_ENVELOPE) -> Iterator[wire.Envelope]:
        """Yield all frames in envelopes of several samples, each shape and each list of names in the first one that uses it."""
        sent: set[bytes] = set()
        frames: list[Frame] = []
        for number, sample in enumerate(self.samples(), 1):
            frames += sample
            if number % samples == 0:
                yield from self._pack(frames, sent)
                frames = []
        yield from self._pack(frames, sent)

    def _pack(self, frames: list[Frame], sent: set[bytes]) -> Iterator[wire.Envelope]:
        # Frames of one stream follow one another, so that they become one batch.
        frames.sort(key=lambda frame: (frame.schema.stream, frame.sequence))
        for group in split_into_envelopes(frames):
            parts = list(map(schema_parts, dict.fromkeys(frame.schema for frame in group)))
            shapes = {each.shape_hash: each.shape for each in parts if each.shape_hash not in sent}
            names = {each.names_hash: each.names for each in parts if each.names_hash not in sent}
            sent |= shapes.keys() | names.keys()
            batches = batch_encoding.encode_batches(group)
            new = wire.SentParts(list(shapes.values()), list(names.values()))
            yield wire.envelope(self.origin, batches, new, agent_version=__version__)

    def _read_moments(self) -> Iterator[CaptureMoment]:
        try:
            yield from capture.read_moments(self._directory)
        except CaptureError as error:
            self.problem = error


def _select(
    sources: Sequence[Source], names: Collection[str], disabled: Iterable[str]
) -> list[Source]:
    """Return the named sources without disabled ones; without names, those whose frames an agent ships."""
    known = {source.name for source in sources}
    if unknown := sorted(set(names) - known - set(disabled)):
        message = f"unknown source: {unknown[0]}: expected one of {', '.join(sorted(known))}"
        raise SettingsError(message)
    return [
        source for source in sources if source.name in names or (source.is_shipped and not names)
    ]


def _selected_metrics(names: Collection[str]) -> frozenset[str]:
    if unknown := sorted(set(names) - METRICS.keys()):
        message = f"unknown metric: {unknown[0]}: expected a metric of the catalog"
        raise SettingsError(message)
    return frozenset(names)


def _origin(about: CaptureMetadata) -> FrameOrigin:
    """Return the origin of frames; the run is the same for every replay of a capture."""
    start = f"{about.boot_id} {about.started_boot_ns} {about.started_wall_ns}"
    run = hashlib.blake2b(start.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    node, boot_id = (printable(text)[: wire.MAX_NAME] for text in (about.node, about.boot_id))
    return FrameOrigin(node, run, boot_id)


def _device(section: str, key: str) -> str:
    """Return the device of a query, as that of a hung call."""
    match = _CALL.match(key) if section == "calls" else None
    if match is None:
        return guards.device_of(key)
    interface, function, argument = match.groups()
    return guards.device_of_call(interface, function, *([argument] if argument else ()))[0]


def replay_captures(
    directories: Iterable[Path],
    settings: AgentSettings,
    names: Collection[str],
    metrics: Collection[str],
    out: BinaryIO,
) -> bool:
    """Write the envelopes of captures, each after its length; return False if one is damaged."""
    is_complete = True
    gc.set_threshold(GC_ALLOCATIONS)
    for directory in directories:
        problem: CaptureError | None
        is_used = False
        try:
            replay = CaptureReplay(directory, settings, names, metrics)
        except CaptureError as error:
            problem = error
        else:
            for envelope in replay.envelopes():
                body = wire.pack(envelope)
                out.write(_LENGTH.pack(len(body)) + body)
                is_used = True
            out.flush()
            problem = replay.problem
        if problem:
            is_cut = isinstance(problem, capture.TruncatedCaptureError)
            is_complete &= is_cut
            effect = "the samples before it are used" if is_used else "the capture is left out"
            click.echo(f"{'Warning' if is_cut else 'Error'}: {problem}; {effect}", err=True)
    return is_complete


@click.command(name="replay")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings file (TOML) of the agents. Default: no file.",
)
@click.option(
    "--source", "sources", multiple=True, metavar="NAME", help="Read only this source; repeatable."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Read and write only columns of this metric; repeatable. Events are written as without it.",
)
@click.argument(
    "captures",
    nargs=-1,
    required=True,
    metavar="CAPTURE...",
    type=click.Path(file_okay=False, path_type=Path),
)
def replay_command(
    config: Path | None,
    sources: tuple[str, ...],
    metrics: tuple[str, ...],
    captures: tuple[Path, ...],
) -> None:
    """Write the frames of captures to standard output, in the wire format.

    Each record is the length of an envelope (4 bytes, little-endian) and the envelope, as an agent ships it.
    A shape or list of names is in the first envelope of its capture that uses it.

    Sources with a period of at most 5 s are read at every recorded moment; those with a longer one, and those of
    claims, sharing and health of GPUs, at their period. A source that uses the results of others needs them as well.

    Exit status 3 if a capture is damaged; the others, and its moments before the damage, are written.
    """
    log_output.configure_logs("error")
    loaded = settings.load(AgentSettings, file=config, prefix=PREFIX)
    is_complete = replay_captures(captures, loaded, sources, metrics, sys.stdout.buffer)
    sys.exit(0 if is_complete else DAMAGED_STATUS)
