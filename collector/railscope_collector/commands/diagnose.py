"""`railscope diagnose`: causes, victims and evidence of faults, from captures or from a frame log, also while it grows.

Captures are replayed by `railscope agent replay` in one process for each core; the diagnosis is that of the running
collector. An evaluation uses nothing that was recorded after its end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from railscope import capture, cli, figures, settings, timestamps
from railscope.envelopes import unpack
from railscope.shapes import SchemaTable
from railscope.wire import Batch, Envelope, WireError, WireSchema
from railscope_collector.commands import config_option, follow_log, load_settings, node_clocks
from railscope_collector.commands.node_clocks import (
    CaptureRange,
    DiagnoseError,
    NodeClocks,
    read_arrivals,
    warn,
)
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis, Receipt
from railscope_collector.diagnosis.incident_report import describe
from railscope_collector.diagnosis.jobs import ClaimedGpus, owner_as_tenant
from railscope_collector.diagnosis.quantities import QUANTITIES
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.files import tenants_file
from railscope_collector.files.watched_file import FileError
from railscope_collector.fleet.schemas import SchemaReader
from railscope_collector.fleet.sheets import check_batch
from railscope_collector.framelog import segment_files
from railscope_collector.switches import switch_settings
from railscope_collector.workloads.pod_jobs import compile_pattern

MAX_ENVELOPE_BYTES = 256 << 20
MAX_ROWS = 1 << 20
MAX_BACKLOG_NS = 3600 * timestamps.SECOND_NS
"""Age of frames at their receipt that extends the range of a frame log."""
MAX_CAPTURES_PER_PROCESS = 8
"""Captures that one process replays: its start takes as long as ten minutes of a node."""
_LENGTH_BYTES = 4
_USAGE_STATUS = 2
"""Exit status of a command for invalid settings or options."""
_PREFIX = re.compile(r"^(?:Error|Warning|railscope): ")
REPLAYED_SOURCES = (
    "gpu", "gpu_activity", "gpu_health", "gpu_device", "gpu_pcie", "gpu_event", "nvlink", "rdma",
    "gpu_sharing", "nic", "link", "link_errors", "nic_settings", "neighbour", "pcie", "host", "nfs", "lustre",
    "kernel", "tenancy", "flight_recorder", "nccl_inspector", "nccl_ras",
)  # fmt: skip
"""Sources of the metrics that the diagnosis uses."""
REPLAYED_METRICS = sorted(
    {each.metric for each in QUANTITIES.values() if each.device not in {"port", "queue"}}
)


@dataclass(slots=True)
class FailedPart:
    """A part of a diagnosis that failed, such as a detector, how often, and why the first time."""

    part: str
    problem: str
    failures: int = 0

    def __str__(self) -> str:
        return f"{self.part} failed {figures.count(self.failures, 'time')}: {self.problem}"


class RecordedDiagnosis(ClusterDiagnosis):
    """Diagnosis of a recording. A part that fails is recorded, and the others continue, as in a collector."""

    def __init__(self, first_ns: int, slots: int, site: follow_log.DiagnosisSite) -> None:
        super().__init__(first_ns, slots, site.claims, site.thresholds)
        self.failed: dict[str, FailedPart] = {}
        self.on_fault = self._add_failure

    def _add_failure(self, part: str, fault: Exception) -> None:
        if part not in self.failed:
            origin = traceback.extract_tb(fault.__traceback__)[-1]
            place = f"{Path(origin.filename).name}:{origin.lineno}"
            self.failed[part] = FailedPart(part, f"{type(fault).__name__}: {fault} ({place})")
        self.failed[part].failures += 1


class _NodeFrames(NamedTuple):
    """Envelopes of nodes, of each in the order of their time, and where their schemas are found."""

    envelopes: Iterable[Envelope]
    find_schema: Callable[[bytes], WireSchema] | None = None
    """Returns a schema that no envelope contains. Raises LookupError, OSError."""


@click.command()
@click.option(
    "--captures",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with a capture of each node in a subdirectory.",
)
@click.option(
    "--frame-log",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="State directory of a collector, in place of captures.",
)
@click.option(
    "--from", "from_text", default="", help="Start of the range of a frame log, RFC 3339."
)
@click.option("--to", "to_text", default="", help="End of the range of a frame log, RFC 3339.")
@click.option(
    "--follow",
    is_flag=True,
    help="Follow the frame log while it grows, and print each change as a line of JSON.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory in which --follow saves its state.",
)
@click.option(
    "--messages",
    is_flag=True,
    help="Read jobs, links and time of the collector from standard input, as it sends them.",
)
@config_option
@cli.format_option("text", "json")
def diagnose(  # noqa: PLR0913, PLR0917 - options
    captures: Path | None,
    frame_log: Path | None,
    from_text: str,
    to_text: str,
    follow: bool,  # noqa: FBT001 - an option
    state: Path | None,
    messages: bool,  # noqa: FBT001 - an option
    config: Path | None,
    form: str,
) -> None:
    """Find the cause, the victims and the evidence of each fault in a recording.

    One subdirectory of --captures is the capture of one node. A file `arrivals.csv` beside them (node,sent,received:
    nanoseconds of the node's and of the collector's clock) states the clock offsets, and the
    times at which the collector received from each node. A file `agent.toml` has the settings of the agents. A capture
    that cannot be read, or whose time is not that of the others, is left out with a warning.

    Tenants, cabling and thresholds are those of the settings file. Without one, thresholds have their defaults, and owners
    of jobs are shown in place of tenants. With --format json, each incident is one line in its last state. Exit status 0 with or
    without incidents; 1 if a part of the diagnosis, such as a detector, failed: its incidents may be missing.

    With --follow, the command reads a frame log from its beginning, or from where the state in --state ends, until it is
    stopped, and prints a line of JSON for each incident that changes, each change, and each evaluation. --state is a directory
    of its own: that of the collector, DIRECTORY/diagnosis, is in use while the collector runs.
    """
    span = _span(from_text, to_text)
    if (captures is None) == (frame_log is None):
        message = "expected either --captures or --frame-log"
        raise click.UsageError(message)
    if captures and (from_text or to_text):
        message = "--from and --to select a range of --frame-log: expected none with --captures"
        raise click.UsageError(message)
    _check_follow(is_used=follow, has_log=frame_log is not None, others=(state, messages, to_text))
    if frame_log and follow:
        if messages:
            follow_log.serve_collector(frame_log, state)
        else:
            follow_log.follow_alone(frame_log, state, span[0], _site(config))
        return
    site = _site(config)
    if captures:
        diagnosis = diagnose_captures(captures, site)
    else:
        assert frame_log is not None  # noqa: S101 - one of both is set
        diagnosis = _diagnose_frame_log(frame_log, span, site)
    sys.exit(print_result(diagnosis, form))


def _check_follow(*, is_used: bool, has_log: bool, others: tuple[object, bool, str]) -> None:
    """Check the options of --follow. Raises UsageError."""
    state, messages, to_text = others
    if is_used and (not has_log or to_text):
        message = "--follow reads a growing frame log: expected --frame-log, and no --to"
        raise click.UsageError(message)
    if (state or messages) and not is_used:
        message = "--state is the state of --follow: expected both or none"
        raise click.UsageError(message)


def _site(config: Path | None) -> follow_log.DiagnosisSite:
    """Return claims with the tenants of owners, thresholds and cabling. Raises SettingsError, DiagnoseError."""
    loaded = load_settings(config)
    pods = compile_pattern(loaded.pod_job_pattern)
    file, mappings = loaded.tenants_file, tenants_file.TenantMappings()
    try:
        if file:
            mappings = tenants_file.parse_tenants(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, FileError) as error:
        message = f"cannot read tenants_file {file}: {error}"
        raise DiagnoseError(message) from error
    has_tenants = file or config or settings.default_file("collector")
    tenant_of = mappings.find_tenant if has_tenants else owner_as_tenant
    cables = switch_settings.read_cabling(loaded.switches)
    links = [LinkedPort(*cable, is_certain=True) for cable in cables]
    return follow_log.DiagnosisSite(
        ClaimedGpus(tenant_of, pods), loaded.diagnosis.thresholds, links
    )


def _span(from_text: str, to_text: str) -> tuple[int, int]:
    """Return the range of a frame log. Raises UsageError."""
    span = _time(from_text, 0), _time(to_text, 1 << 62)
    if span[0] > span[1]:
        message = (
            f"invalid range: --from {from_text} is after --to {to_text}: expected an earlier time"
        )
        raise click.UsageError(message)
    return span


def _time(text: str, default: int) -> int:
    try:
        return timestamps.parse_timestamp(text) if text else default
    except timestamps.TimestampError as error:
        raise click.UsageError(str(error)) from error


def print_result(diagnosis: RecordedDiagnosis, form: str) -> int:
    """Print the incidents, and what the diagnosis lacks; return the exit status: 1 if a part of it failed."""
    for line in diagnosis.exceeded_limits():
        warn(line)
    for failed in diagnosis.failed.values():
        warn(f"{failed}; its incidents may be missing; fix: report it with the recording")
    for line in _render(diagnosis, form):
        click.echo(line)
    return 1 if diagnosis.failed else 0


def _render(diagnosis: RecordedDiagnosis, form: str) -> Iterator[str]:
    incidents = sorted(diagnosis.tracker.incidents, key=lambda incident: incident.detected_ns)
    for incident in incidents:
        found = diagnosis.report(incident)
        if form == "json":
            yield msgspec.json.encode(found.document).decode()
        else:
            yield from describe(found.document, len(incident.victim_nics), len(found.jobs))
    if form == "text" and not incidents:
        yield "no incidents"
    for failed in diagnosis.failed.values():
        yield (
            msgspec.json.encode({"failed": failed}).decode()
            if form == "json"
            else f"incomplete: {failed}"
        )


# Captures ----------------------------------------------------------------------------------------


def diagnose_captures(directory: Path, site: follow_log.DiagnosisSite) -> RecordedDiagnosis:
    """Diagnose the captures of nodes. Raises DiagnoseError."""
    found = node_clocks.find_captures(directory)
    clocks = read_arrivals(directory / "arrivals.csv", [each.start_ns for each in found])
    captures = node_clocks.align_captures(found, clocks)
    start_ns = min(each.start_ns for each in captures)
    diagnosis, slots = _new_diagnosis(start_ns, max(each.end_ns for each in captures), site)
    for envelopes in _replay(captures, _agent_options(directory / "agent.toml")):
        _add(diagnosis, clocks, _NodeFrames(envelopes))
    if not diagnosis.devices.nodes:
        message = f"no frames in the captures of {directory}: expected at least one moment"
        raise DiagnoseError(message)
    _add_receipts(diagnosis, clocks)
    diagnosis.has_captures = True
    _evaluate(diagnosis, slots)
    return diagnosis


def _agent_options(config: Path) -> Sequence[str]:
    """Return the option for the settings of the agents beside the captures. Raises DiagnoseError."""
    if not config.exists():
        return ()
    try:
        capture.check_regular_file(config)
    except OSError as error:
        message = f"cannot read {config}: {error.strerror}"
        raise DiagnoseError(message) from error
    return "--config", str(config)


def _new_diagnosis(
    start_ns: int, end_ns: int, site: follow_log.DiagnosisSite
) -> tuple[RecordedDiagnosis, int]:
    """Return a diagnosis of a range of time, and the number of its slots. Raises DiagnoseError."""
    first_ns, slots = node_clocks.slots_of(start_ns, end_ns)
    if slots > node_clocks.MAX_SLOTS:
        raise node_clocks.range_error(start_ns, end_ns)
    diagnosis = RecordedDiagnosis(first_ns, slots, site)
    diagnosis.fabric.set_links(site.links, first_ns)
    diagnosis.begin(slots - 1)
    return diagnosis, slots


def _evaluate(diagnosis: ClusterDiagnosis, slots: int) -> None:
    diagnosis.arrange()
    for slot in range(slots):
        diagnosis.evaluate(slot)


def _add(diagnosis: ClusterDiagnosis, clocks: NodeClocks, frames: _NodeFrames) -> None:
    """Add the frames of nodes; warn of batches without a schema, or that contradict it."""
    schemas = SchemaTable(frames.find_schema)
    skipped: dict[str, list[str]] = defaultdict(list)
    for envelope in frames.envelopes:
        clock = clocks.clock(envelope.node)
        schemas.add(envelope)
        for batch in envelope.batches:
            try:
                is_usable = _fits(batch, schemas[batch.schema])
            except (LookupError, OSError):
                is_usable = False
            if not is_usable:
                skipped[envelope.node].append(batch.stream)
                continue
            diagnosis.add(envelope.node, envelope.run, batch, schemas.__getitem__, clock)
    for node, sources in skipped.items():
        warn(
            f"ignored {len(sources)} batches of node {node!r}, the first is of source {sources[0]!r}: "
            "expected batches with a valid schema"
        )


def _fits(batch: Batch, schema: WireSchema) -> bool:
    """True if the lengths of a batch are those of its schema."""
    try:
        check_batch(batch, schema.width, MAX_ROWS)
    except WireError:
        return False
    return True


def _add_receipts(diagnosis: ClusterDiagnosis, clocks: NodeClocks) -> None:
    """Add the arrivals, or the samples in their place."""
    diagnosis.has_receipts = bool(clocks.receipts)
    for receipt in clocks.receipts:
        diagnosis.add_receipt(receipt)
    if not clocks.receipts:
        for node, slots in diagnosis.readings.sample_slots.items():
            for slot in slots:
                diagnosis.add_receipt(Receipt(diagnosis.end_of(slot) - 1, node))


def _replay(captures: Sequence[CaptureRange], options: Sequence[str]) -> Iterator[list[Envelope]]:
    """Yield the envelopes of a few captures at a time, replayed in one process for each core."""
    cores = len(os.sched_getaffinity(0))
    size = min(-(-len(captures) // cores), MAX_CAPTURES_PER_PROCESS)
    directories = [capture.directory for capture in captures]
    parts = [directories[first : first + size] for first in range(0, len(captures), size)]
    with ThreadPoolExecutor(min(cores, len(parts))) as pool:
        yield from pool.map(lambda part: replay_captures(part, options), parts)


def replay_captures(
    directories: Sequence[Path], options: Sequence[str] = (), program: Sequence[str] = ()
) -> list[Envelope]:
    """Return the frames of captures; those before the damage of a damaged one, of which it warns.

    After an unexpected end, such as one for lack of memory, each capture is replayed in a process of its own: only
    those that end it again are left out. Raises DiagnoseError for invalid settings of the agents.
    """
    try:
        return _replay_in_one_process(directories, options, program)
    except subprocess.SubprocessError as error:
        if len(directories) == 1:
            warn(
                f"cannot replay {directories[0]}: {error}; the capture is left out; "
                f"fix: see the error of `railscope agent replay {directories[0]}`"
            )
            return []
    return [each for path in directories for each in replay_captures([path], options, program)]


def _replay_in_one_process(
    directories: Sequence[Path], options: Sequence[str], program: Sequence[str]
) -> list[Envelope]:
    """Return the frames of captures.

    Raises SubprocessError after an unexpected end of the process, and DiagnoseError for invalid settings of the agents.
    """
    names = [argument for name in REPLAYED_SOURCES for argument in ("--source", name)]
    names += [argument for name in REPLAYED_METRICS for argument in ("--metric", name)]
    # The replay ends with this process, for example if that is stopped by a signal.
    child = (sys.executable, "-P", "-m", "railscope.child_process", str(os.getpid()))
    command = [
        *(program or child),
        "agent",
        "replay",
        *options,
        *names,
        "--",
        *map(str, directories),
    ]
    finished = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - own program
    problems = finished.stderr.decode(errors="replace").splitlines()
    status, last = finished.returncode, problems[-1] if problems else ""
    if status == _USAGE_STATUS:
        message = f"cannot replay the captures: {_PREFIX.sub('', last)}"
        raise DiagnoseError(message)
    if status not in {0, capture.DAMAGED_STATUS}:
        message = f"exit status {status}: {last}"
        if status < 0:
            message = f"ended by signal {-status} ({signal.strsignal(-status)})"
        raise subprocess.SubprocessError(message)
    try:
        envelopes = list(_records(finished.stdout))
    except WireError as error:
        message = f"invalid frames: {error}"
        raise subprocess.SubprocessError(message) from error
    for line in problems:
        warn(_PREFIX.sub("", line))
    return envelopes


def _records(stream: bytes) -> Iterator[Envelope]:
    """Yield the envelopes of a replay. Raises WireError."""
    position = 0
    while position < len(stream):
        end = position + _LENGTH_BYTES
        length = int.from_bytes(stream[position:end], "little")
        yield unpack(stream[end : end + length], MAX_ENVELOPE_BYTES)
        position = end + length


# Frame log ---------------------------------------------------------------------------------------


def _diagnose_frame_log(
    state: Path, span: tuple[int, int], site: follow_log.DiagnosisSite
) -> RecordedDiagnosis:
    """Diagnose a range of a collector's frame log. Raises DiagnoseError."""
    if not (state / "frames").is_dir():
        message = f"no frame log in {state}: expected a collector's state directory with `frames`"
        raise DiagnoseError(message)
    # The log is read twice, as its frames may need more memory than there is.
    segments = segment_files.segment_numbers(state / "frames")
    clocks, earliest = NodeClocks(), dict[str, int]()
    for record in _frame_records(state / "frames", segments, *span):
        clocks.add(record.node, record.sent.wall_ns, record.received_wall_ns)
        for batch in unpack(record.body, MAX_ENVELOPE_BYTES).batches:
            wall_ns = batch.wall_ns[0]
            earliest[record.node] = min(earliest.get(record.node, wall_ns), wall_ns)
    if not clocks.receipts:
        message = f"no frames in {state} in this range: expected at least one"
        raise DiagnoseError(message)
    received = [receipt.received_ns for receipt in clocks.receipts]
    first_ns, last_ns = min(received), max(received)
    # Frames of a spool are older than their receipt; times of a wrong clock must not extend the range.
    sampled_ns = [clocks.clock(node)(wall_ns) for node, wall_ns in earliest.items()]
    start_ns = min(first_ns, max(min(sampled_ns, default=first_ns), first_ns - MAX_BACKLOG_NS))
    diagnosis, slots = _new_diagnosis(start_ns, last_ns, site)
    records = _frame_records(state / "frames", segments, span[0], last_ns)
    envelopes = (unpack(record.body, MAX_ENVELOPE_BYTES) for record in records)
    _add(diagnosis, clocks, _NodeFrames(envelopes, SchemaReader(state).read))
    _add_receipts(diagnosis, clocks)
    diagnosis.has_captures = True
    _evaluate(diagnosis, slots)
    return diagnosis


def _frame_records(
    frames: Path, segments: Iterable[int], from_ns: int, to_ns: int
) -> Iterator[segment_files.FrameRecord]:
    """Yield the records of a range; warn of a segment that the collector has deleted meanwhile."""
    stats = segment_files.FrameLogStats()
    for number in segments:
        try:
            path = segment_files.segment_path(frames, number)
            for _, record in segment_files.read_segment(path, stats):
                if from_ns <= record.received_wall_ns <= to_ns:
                    yield record
        except FileNotFoundError:
            warn(
                f"segment {number} of {frames} was deleted while the log was read: its frames are missing"
            )
