"""`railscope diagnose`: causes, victims and evidence of faults, from captures or from a frame log.

Captures are replayed by `railscope agent replay` in one process for each core; the diagnosis is that of the running
collector. An evaluation uses nothing that was recorded after its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from collector.commands import config_option, load_settings
from collector.commands.node_clocks import MAX_RANGE_NS, DiagnoseError, NodeClocks, read_arrivals
from collector.config import CollectorSettings
from collector.detector_thresholds import DetectorThresholds
from collector.diagnosis.cluster_diagnosis import (
    SLOT_SECONDS,
    WINDOW_SLOTS,
    ClusterDiagnosis,
    Receipt,
)
from collector.diagnosis.incident_report import describe, incident_document
from collector.diagnosis.jobs import ClaimedGpus, PeerGroups, owner_as_tenant
from collector.diagnosis.quantities import QUANTITIES
from collector.diagnosis.switch_evidence import LinkedPort
from collector.files import tenancy_files
from collector.files.watched_file import FileError
from collector.fleet.schema_files import SchemaFiles, decode_schema
from collector.fleet.sheets import check_batch
from collector.framelog import segment_files
from collector.switches import switch_settings
from collector.workloads.job_roster import compile_pattern
from railscope import capture, cli, timestamps
from railscope.envelopes import unpack
from railscope.wire import Batch, Envelope, WireError, WireSchema, schema_hash

MAX_ENVELOPE_BYTES = 256 << 20
MAX_ROWS = 1 << 20
MAX_BACKLOG_NS = 3600 * timestamps.SECOND_NS
"""Age of frames at their receipt that extends the range of a frame log."""
MAX_SLOTS = MAX_RANGE_NS // timestamps.SECOND_NS // SLOT_SECONDS
MAX_CAPTURES_PER_PROCESS = 8
"""Captures that one process replays: its start takes as long as ten minutes of a node."""
_LENGTH_BYTES = 4
REPLAYED_SOURCES = (
    "gpu", "gpu_activity", "gpu_health", "gpu_device", "gpu_pcie", "gpu_event", "nvlink", "rdma",
    "gpu_sharing", "nic", "link", "link_errors", "nic_settings", "neighbour", "pcie", "host", "nfs", "lustre",
    "kernel", "tenancy", "worker_server", "flight_recorder", "nccl_inspector", "nccl_ras",
)  # fmt: skip
"""Sources of the metrics that the diagnosis uses."""
REPLAYED_METRICS = sorted({quantity.metric for quantity in QUANTITIES.values()})


class _NodeFrames(NamedTuple):
    """Envelopes of nodes, of each in the order of their time, and where their schemas are found."""

    envelopes: Iterable[Envelope]
    find_schema: Callable[[bytes], WireSchema | None]


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
@config_option
@cli.format_option("text", "json")
def diagnose(  # noqa: PLR0913, PLR0917 - options
    captures: Path | None,
    frame_log: Path | None,
    from_text: str,
    to_text: str,
    config: Path | None,
    form: str,
) -> None:
    """Find the cause, the victims and the evidence of each fault in a recording.

    One subdirectory of --captures is the capture of one node. A file `arrivals.csv` beside them (node,sent,received:
    nanoseconds of the node's and of the collector's clock) states the clock offsets, and the
    times at which the collector received from each node. A file `agent.toml` has the settings of the agents. With --format json, each incident is one line in its last state. Exit status 0 with or without incidents.
    """
    if (captures is None) == (frame_log is None):
        message = "expected either --captures or --frame-log"
        raise click.UsageError(message)
    span = _time(from_text, 0), _time(to_text, 1 << 62)
    if captures and (from_text or to_text):
        message = "--from and --to select a range of --frame-log: expected none with --captures"
        raise click.UsageError(message)
    if span[0] > span[1]:
        message = (
            f"invalid range: --from {from_text} is after --to {to_text}: expected an earlier time"
        )
        raise click.UsageError(message)
    site = _site(config)
    if captures:
        diagnosis = _diagnose_captures(captures, site)
    else:
        assert frame_log is not None  # noqa: S101 - one of both is set
        diagnosis = _diagnose_frame_log(frame_log, span, site)
    for line in diagnosis.exceeded_limits():
        click.echo(line, err=True)
    try:
        for line in _render(diagnosis, form):
            click.echo(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"cannot write the incidents: {error}"
        raise DiagnoseError(message) from error


class _Site(NamedTuple):
    """Claims with the tenants and jobs of a site, its thresholds and its cabling, by the settings of its collector."""

    claims: ClaimedGpus
    thresholds: DetectorThresholds
    links: Sequence[LinkedPort]


def _site(config: Path | None) -> _Site:
    """Return claims with the tenants of owners, thresholds and cabling. Raises SettingsError, DiagnoseError."""
    settings = load_settings(config, {}) if config else CollectorSettings()
    pods = compile_pattern(settings.pod_job_pattern)
    file, mappings = settings.tenants_file, tenancy_files.TenantMappings()
    try:
        if file:
            mappings = tenancy_files.parse_tenants(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, FileError) as error:
        message = f"cannot read tenants_file {file}: {error}"
        raise DiagnoseError(message) from error
    tenant_of = mappings.find_tenant if config else owner_as_tenant
    cables = switch_settings.read_cabling(settings.switches)
    links = [LinkedPort(*cable, is_certain=True) for cable in cables]
    return _Site(ClaimedGpus(tenant_of, pods), settings.diagnosis.thresholds, links)


def _time(text: str, default: int) -> int:
    try:
        return timestamps.parse_timestamp(text) if text else default
    except timestamps.TimestampError as error:
        raise click.UsageError(str(error)) from error


def _render(diagnosis: ClusterDiagnosis, form: str) -> Iterator[str]:
    groups = diagnosis.groups or PeerGroups(diagnosis.devices)
    incidents = sorted(diagnosis.tracker.incidents, key=lambda incident: incident.detected_ns)
    seconds = float(SLOT_SECONDS * WINDOW_SLOTS)
    for incident in incidents:
        document = incident_document(incident, diagnosis.devices, groups, seconds)
        if form == "json":
            yield msgspec.json.encode(document).decode()
        else:
            yield from describe(document)
    if form == "text" and not incidents:
        yield "no incidents"


# Captures ----------------------------------------------------------------------------------------


class _CaptureRange(NamedTuple):
    """A capture, its node, and the range of its time on the node's clock."""

    directory: Path
    node: str
    start_ns: int
    end_ns: int


def _find_captures(directory: Path) -> list[_CaptureRange]:
    """Return the captures below a directory; warn of invalid ones. Raises DiagnoseError."""
    found = []
    for path in sorted(directory.iterdir()):
        if not (path / "capture.toml").is_file():
            continue
        try:
            about = capture.read_metadata(path)
        except capture.CaptureError as error:
            click.echo(f"warning: {error}; the node is unknown", err=True)
            continue
        start_ns, end_ns = about.started_wall_ns, about.started_wall_ns + about.duration_ns
        if not 0 <= start_ns <= end_ns <= timestamps.FOREVER_NS:
            click.echo(
                f"warning: invalid capture: {path}: from {start_ns} to {end_ns} ns: expected times since 1970; "
                "the node is unknown",
                err=True,
            )
            continue
        found.append(_CaptureRange(path, about.node, start_ns, end_ns))
    if not found:
        message = (
            f"no captures in {directory}: expected a subdirectory with capture.toml for each node"
        )
        raise DiagnoseError(message)
    names = [capture.node for capture in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        message = f"two captures of node {twice!r} in {directory}: expected one; fix: move one to another directory"
        raise DiagnoseError(message)
    return found


def _diagnose_captures(directory: Path, site: _Site) -> ClusterDiagnosis:
    captures = _find_captures(directory)
    clocks = read_arrivals(directory / "arrivals.csv", [each.start_ns for each in captures])
    bounds = [
        clocks.clock(each.node)(ns) for each in captures for ns in (each.start_ns, each.end_ns)
    ]
    diagnosis, slots = _new_diagnosis(min(bounds), max(bounds), site)
    config = directory / "agent.toml"
    for envelopes in _replay(captures, ("--config", str(config)) if config.exists() else ()):
        _add(diagnosis, clocks, _NodeFrames(envelopes, lambda _: None))
    if not diagnosis.devices.nodes:
        message = f"no frames in the captures of {directory}: expected at least one moment"
        raise DiagnoseError(message)
    _add_receipts(diagnosis, clocks)
    diagnosis.has_captures = True
    _evaluate(diagnosis, slots)
    return diagnosis


def _new_diagnosis(start_ns: int, end_ns: int, site: _Site) -> tuple[ClusterDiagnosis, int]:
    """Return a diagnosis of a range of time, and the number of its slots. Raises DiagnoseError."""
    slot_ns = SLOT_SECONDS * timestamps.SECOND_NS
    first_ns = start_ns // slot_ns * slot_ns
    slots = max(-(-(end_ns - first_ns) // slot_ns), 1)  # the last one may be a part of a slot
    if slots > MAX_SLOTS:
        span = f"{timestamps.format_timestamp(start_ns)} to {timestamps.format_timestamp(end_ns)}"
        message = f"range too long: {span}: expected at most 7 days; fix: select a part, or check the nodes' clocks"
        raise DiagnoseError(message)
    diagnosis = ClusterDiagnosis(first_ns, slots, site.claims, site.thresholds)
    diagnosis.switches.set_links(site.links, first_ns)
    diagnosis.begin(slots - 1)
    return diagnosis, slots


def _evaluate(diagnosis: ClusterDiagnosis, slots: int) -> None:
    diagnosis.arrange()
    for slot in range(slots):
        diagnosis.evaluate(slot)


def _add(diagnosis: ClusterDiagnosis, clocks: NodeClocks, frames: _NodeFrames) -> None:
    """Add the frames of nodes; warn of batches without a schema, or that contradict it."""
    schemas: dict[bytes, WireSchema] = {}
    skipped = 0
    for envelope in frames.envelopes:
        clock = clocks.clock(envelope.node)
        schemas |= {schema_hash(schema): schema for schema in envelope.schemas}
        for batch in envelope.batches:
            used = schemas.get(batch.schema) or frames.find_schema(batch.schema)
            if used is None or not _fits(batch, used):
                skipped += 1
                continue
            schemas[batch.schema] = used
            diagnosis.add(envelope.node, envelope.run, batch, schemas.__getitem__, clock)
    if skipped:
        click.echo(f"skipped {skipped} batches without a valid schema", err=True)


def _fits(batch: Batch, schema: WireSchema) -> bool:
    """True if the lengths of a batch are those of its schema."""
    try:
        check_batch(batch, sum(len(group.entities) for group in schema.groups), MAX_ROWS)
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


def _replay(captures: Sequence[_CaptureRange], options: Sequence[str]) -> Iterator[list[Envelope]]:
    """Yield the envelopes of a few captures at a time, replayed in one process for each core."""
    cores = len(os.sched_getaffinity(0))
    size = min(-(-len(captures) // cores), MAX_CAPTURES_PER_PROCESS)
    directories = [capture.directory for capture in captures]
    parts = [directories[first : first + size] for first in range(0, len(captures), size)]
    with ThreadPoolExecutor(min(cores, len(parts))) as pool:
        yield from pool.map(lambda part: _replay_part(part, options), parts)


def _replay_part(directories: Sequence[Path], options: Sequence[str]) -> list[Envelope]:
    """Return the frames of captures; those before the damage of a damaged one, of which it warns."""
    names = [argument for name in REPLAYED_SOURCES for argument in ("--source", name)]
    names += [argument for name in REPLAYED_METRICS for argument in ("--metric", name)]
    paths = [str(directory) for directory in directories]
    command = [
        sys.executable,
        "-P",
        "-m",
        "railscope",
        "agent",
        "replay",
        *options,
        *names,
        *paths,
    ]
    finished = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - own program
    if finished.stderr:
        click.echo(finished.stderr.decode(errors="replace").rstrip(), err=True)
    if finished.returncode > 1 or finished.returncode < 0:
        message = f"cannot replay {', '.join(paths)}: exit status {finished.returncode}"
        raise DiagnoseError(message)
    return list(_records(finished.stdout))


def _records(stream: bytes) -> Iterator[Envelope]:
    position = 0
    while position < len(stream):
        end = position + _LENGTH_BYTES
        length = int.from_bytes(stream[position:end], "little")
        try:
            yield unpack(stream[end : end + length], MAX_ENVELOPE_BYTES)
        except WireError as error:
            message = f"invalid frames of a replayed capture: {error}"
            raise DiagnoseError(message) from error
        position = end + length


# Frame log ---------------------------------------------------------------------------------------


def _diagnose_frame_log(state: Path, span: tuple[int, int], site: _Site) -> ClusterDiagnosis:
    """Diagnose a range of a collector's frame log. Raises DiagnoseError."""
    if not (state / "frames").is_dir():
        message = f"no frame log in {state}: expected a collector's state directory with `frames`"
        raise DiagnoseError(message)
    files = SchemaFiles(state / "schemas")
    known_schemas = {}
    if (state / "schemas").is_dir():
        for content in files.open():
            if content:
                schema = decode_schema(content)
                known_schemas[schema_hash(schema)] = schema
    clocks, by_node = NodeClocks(), defaultdict(list)
    for record in _frame_records(state / "frames", *span):
        clocks.add(record.node, record.sent.wall_ns, record.received_wall_ns)
        by_node[record.node].append(unpack(record.body, MAX_ENVELOPE_BYTES))
    if not clocks.receipts:
        message = f"no frames in {state} in this range: expected at least one"
        raise DiagnoseError(message)
    received = [receipt.received_ns for receipt in clocks.receipts]
    # Frames of a spool are older than their receipt; times of a wrong clock must not extend the range.
    first_ns = min(received)
    start_ns = max(min(_first_times(clocks, by_node), default=first_ns), first_ns - MAX_BACKLOG_NS)
    diagnosis, slots = _new_diagnosis(min(start_ns, first_ns), max(received), site)
    for _, envelopes in sorted(by_node.items()):
        _add(diagnosis, clocks, _NodeFrames(envelopes, known_schemas.get))
    _add_receipts(diagnosis, clocks)
    diagnosis.has_captures = True
    _evaluate(diagnosis, slots)
    return diagnosis


def _first_times(clocks: NodeClocks, by_node: Mapping[str, Iterable[Envelope]]) -> Iterator[int]:
    """Yield the first time of each batch on the collector's clock."""
    for node, envelopes in by_node.items():
        clock = clocks.clock(node)
        yield from (clock(batch.wall_ns[0]) for each in envelopes for batch in each.batches)


def _frame_records(frames: Path, from_ns: int, to_ns: int) -> Iterator[segment_files.FrameRecord]:
    stats = segment_files.FrameLogStats()
    for number in segment_files.segment_numbers(frames):
        for _, record in segment_files.read_segment(
            segment_files.segment_path(frames, number), stats
        ):
            if from_ns <= record.received_wall_ns <= to_ns:
                yield record
