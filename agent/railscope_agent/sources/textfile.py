"""Textfiles: series of the site, from files in a directory.

Every read parses the files that have changed. A rejected file has no series, and affects no other: of two files
with one series, or with one name and two types, the one that root owns keeps it, else the one that had it, else
the first by name.

The series are names of frames, of which a collector stores a bounded number of lists for each node: so new
lists are limited, and a file whose labels change in every read cannot prevent the node from shipping.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

import structlog

from railscope.catalog import entities, textfile as catalog
from railscope.catalog.textfile import DirectoryState, TextfileState
from railscope.frame import Column, Entity, Event, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent import config
from railscope_agent.host import Host
from railscope_agent.host.textfiles import HOST_INTERFACE, MAX_FILES
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources.textfile_parser import TextfileError, TextfileFamily, parse_textfile

log = structlog.get_logger(__name__)

MAX_NAMES_BYTES = 192 << 10
"""Size of all names, labels and help texts: with the largest number of series, a list of names that a collector accepts."""
MAX_CHANGES = 20
"""Maximum of changed states that one read reports individually."""
MAX_WAITING_LISTS = 30
LIST_NS = 120 * SECOND_NS
"""Time after which one more new list of names is allowed, up to MAX_WAITING_LISTS: 30 per hour."""
_ROOT = 0
_DIRECTORY_REMEDIES = {
    DirectoryState.WRITABLE_BY_OTHERS: "chmod o-w the directory",
    DirectoryState.TOO_MANY_FILES: f"leave at most {MAX_FILES} files in the directory",
    DirectoryState.CHANGING: "write labels that do not change: neither times nor process IDs",
}
_FILE_METRICS = (catalog.TEXTFILE_STATE, catalog.TEXTFILE_MODIFIED, catalog.TEXTFILE_EXPOSED)


@dataclass(frozen=True, slots=True)
class Textfile:
    """A file as read: its metrics, or the state and the problem for which it is rejected."""

    name: str
    owner: int
    modified_ns: int | None
    families: tuple[TextfileFamily, ...] = ()
    state: TextfileState = TextfileState.OK
    problem: str = ""

    @property
    def entity(self) -> Entity:
        """Entity of its metrics."""
        return Entity(entities.TEXTFILE, (self.name,))

    @property
    def series_count(self) -> int:
        """Number of its series."""
        return sum(len(family.series) for family in self.families)

    def rejected(self, error: TextfileError) -> Textfile:
        """Return the file without its metrics."""
        return replace(self, families=(), state=error.state, problem=str(error))


@dataclass(slots=True)
class ExposedSeries:
    """Metrics of the files that are accepted, and their limits."""

    max_series: int
    families: dict[str, TextfileFamily] = field(default_factory=dict)
    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Mantissa and exponent by series."""
    _names: dict[str, str] = field(default_factory=dict)
    """Metric by the name of its samples."""
    _bytes: int = 0

    def add(self, families: Sequence[TextfileFamily], count: int) -> None:
        """Add the metrics of a file, all or none. Raises TextfileError."""
        size = 0
        for family in families:
            other = self.families.get(family.name, family)
            if other.type != family.type:
                problem = f"{family.name}: type {family.type}: another file has type {other.type}"
                raise TextfileError(TextfileState.TYPE_CONFLICT, problem)
            for name in family.sample_names:
                if self._names.get(name, family.name) != family.name:
                    problem = (
                        f"{name}: also the name of samples of {self._names[name]} in another file"
                    )
                    raise TextfileError(TextfileState.TYPE_CONFLICT, problem)
            for series in family.series:
                if series.text in self.values:
                    problem = f"{family.name}: another file has a series with the same labels"
                    raise TextfileError(TextfileState.DUPLICATE, problem)
                size += len(series.text.encode())
            size += len((family.name + family.help).encode())
        if len(self.values) + count > self.max_series:
            problem = f"{count} series, with {len(self.values)} of other files: expected at most {self.max_series}; fix: raise textfile.max_series"
            raise TextfileError(TextfileState.LIMIT, problem)
        if self._bytes + size > MAX_NAMES_BYTES:
            problem = f"names and labels of all files: expected at most {MAX_NAMES_BYTES} bytes"
            raise TextfileError(TextfileState.LIMIT, problem)
        # After all checks, so that a rejected file leaves nothing behind.
        self._bytes += size
        for family in families:
            self.families.setdefault(family.name, family)
            self._names |= dict.fromkeys(family.sample_names, family.name)
            self.values |= {s.text: (s.mantissa, s.exponent) for s in family.series}


@dataclass(slots=True)
class _Scan:
    """Result of one scan of the directory."""

    directory_state: DirectoryState
    files: list[Textfile]
    exposed: ExposedSeries

    @property
    def columns(self) -> tuple[tuple[Column, ...], tuple[Entity, ...]]:
        """Columns of files and series, and the entities that describe the metrics."""
        columns = probe_result.ColumnBuilder()
        columns.add(catalog.DIRECTORY_STATE, Entity(entities.NODE))
        for file in self.files:
            columns.add_each(_FILE_METRICS, file.entity)
        series = [Entity(entities.TEXTFILE_SERIES, (text,)) for text in self.exposed.values]
        for metric in (catalog.VALUE_MANTISSA, catalog.VALUE_EXPONENT):
            columns.columns += ((metric, entity) for entity in series)
        families = (
            Entity(entities.TEXTFILE_FAMILY, (family.name, family.type, family.help))
            for family in self.exposed.families.values()
        )
        return tuple(columns.columns), tuple(families)

    def readings(self, exposed: Container[str]) -> dict[Column, Reading]:
        """Return the readings by column; `exposed` are the series that have columns."""
        columns, _ = self.columns
        values: list[Reading] = [self.directory_state]
        for file in self.files:
            modified = Absent.ERROR if file.modified_ns is None else file.modified_ns
            count = sum(series.text in exposed for f in file.families for series in f.series)
            values += (file.state, modified, count)
        for position in (0, 1):
            values += (value[position] for value in self.exposed.values.values())
        return dict(zip(columns, values, strict=True))


class TextfileSource(source.Source):
    """Files of a directory, scanned in the probe, which precedes each read."""

    name = "textfile"
    period_seconds = 15.0

    def __init__(self, settings: config.TextfileSettings) -> None:
        self._settings = settings
        self._parsed: dict[str, tuple[bytes, tuple[TextfileFamily, ...] | TextfileError]] = {}
        """Result of parsing by name, with the digest of the content."""
        self._accepted: frozenset[str] = frozenset()
        self._states: dict[str, TextfileState] = {}
        self._scan: _Scan | None = None
        self._columns: tuple[Column, ...] = ()
        self._described: tuple[Entity, ...] = ()
        self._series: frozenset[str] = frozenset()
        self._directory_state = DirectoryState.OK
        self._lists, self._lists_ns = MAX_WAITING_LISTS, 0

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Scan, and create columns for all files and series."""
        scan = self._scan = self._scanned(host)
        columns, described = scan.columns
        if (columns, described) != (self._columns, self._described):
            if self._may_change(host):
                self._columns, self._described = columns, described
                self._series = frozenset(scan.exposed.values)
            else:
                # The former columns stay: series of the same labels are still reported.
                scan.directory_state = DirectoryState.CHANGING
        return probe_result.ProbeResult(self._columns, self._described, tuple(self._findings(scan)))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Report the scan of the probe."""
        scan, self._scan = self._scan or self._scanned(host), None
        readings = scan.readings(self._series)
        for position, column in enumerate(self._columns):
            into.put(position, readings.get(column, Absent.GONE))
        self._log_directory(scan.directory_state)
        into.events += self._changes(scan.files, host.clock.now())
        into.needs_probe = True

    def _may_change(self, host: Host) -> bool:
        """True if a new list of names is allowed now."""
        now_ns = host.clock.now().boot_ns
        earned, rest_ns = divmod(now_ns - self._lists_ns, LIST_NS)
        self._lists = min(self._lists + earned, MAX_WAITING_LISTS)
        # The rest of the interval is kept, so that frequent calls do not lose it.
        self._lists_ns = now_ns - rest_ns
        if not self._lists:
            return False
        self._lists -= 1
        return True

    def _scanned(self, host: Host) -> _Scan:
        """Read the directory. Raises OSError if it cannot be read."""
        state, names = host.call(HOST_INTERFACE, "list", self._settings.directory)
        read_files = list(self._read_files(host, names[:MAX_FILES]))
        names_read = {file.name for file in read_files}
        self._parsed = {name: p for name, p in self._parsed.items() if name in names_read}
        exposed = ExposedSeries(self._settings.max_series)
        files = {}
        # In order of precedence: a file that would take the place of another's series comes later, and is
        # rejected.
        for file in sorted(read_files, key=self._precedence):
            try:
                exposed.add(file.families, file.series_count)
                files[file.name] = file
            except TextfileError as error:
                files[file.name] = file.rejected(error)
        self._accepted = frozenset(
            file.name for file in files.values() if file.state == TextfileState.OK
        )
        return _Scan(DirectoryState(state), [files[name] for name in sorted(files)], exposed)

    def _precedence(self, file: Textfile) -> tuple[bool, bool, str]:
        return file.owner != _ROOT, file.name not in self._accepted, file.name

    def _read_files(self, host: Host, names: Sequence[str]) -> Iterator[Textfile]:
        """Yield the files; one that is removed meanwhile is left out."""
        limits, total = self._settings, 0
        for name in names:
            try:
                state, owner, modified_ns, text = host.call(
                    HOST_INTERFACE,
                    "read",
                    limits.directory,
                    name,
                    limits.max_file_bytes,
                    limits.max_age_seconds,
                )
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = error.strerror or str(error)
                yield Textfile(name, -1, None, (), TextfileState.UNREADABLE, problem)
                continue
            file = Textfile(name, owner, modified_ns)
            content = text.encode(errors="surrogateescape")
            total += len(content)
            try:
                self._check(TextfileState(state), total, text)
                yield replace(file, families=self._parse(name, content))
            except TextfileError as error:
                yield file.rejected(error)

    def _check(self, state: TextfileState, total_bytes: int, text: str) -> None:
        """Raise TextfileError for a file that was not read, or that is beyond the size of all files."""
        limits = self._settings
        problems = {
            TextfileState.UNREADABLE: text,
            TextfileState.NOT_REGULAR: "a link, a directory, a pipe or a device: expected a regular file",
            TextfileState.TOO_LARGE: f"expected at most {limits.max_file_bytes} bytes;"
            " fix: raise textfile.max_file_bytes",
            TextfileState.TOO_OLD: f"not written for textfile.max_age_seconds: {limits.max_age_seconds} s",
            TextfileState.INCOMPLETE: "written while it was read;"
            " fix: write a file of another name and rename it to *.prom",
        }
        if state != TextfileState.OK:
            raise TextfileError(state, problems[state])
        if total_bytes > limits.max_total_bytes:
            problem = (
                f"all files: expected at most {limits.max_total_bytes} bytes;"
                " fix: raise textfile.max_total_bytes"
            )
            raise TextfileError(TextfileState.LIMIT, problem)

    def _parse(self, name: str, content: bytes) -> tuple[TextfileFamily, ...]:
        """Return the metrics of a file, parsed if it has changed. Raises TextfileError."""
        # The digest and not the content is kept: the files of a node may have megabytes.
        digest = hashlib.blake2b(content, digest_size=16).digest()
        cached = self._parsed.get(name)
        if cached is None or cached[0] != digest:
            result: tuple[TextfileFamily, ...] | TextfileError
            try:
                result = tuple(parse_textfile(content, self._settings.max_series))
            except TextfileError as error:
                result = error
            cached = self._parsed[name] = digest, result
        if isinstance(cached[1], TextfileError):
            raise cached[1]
        return cached[1]

    def _findings(self, scan: _Scan) -> Iterator[probe_result.ProbeFinding]:
        subject = f"textfiles in {self._settings.directory}"
        if scan.directory_state:
            problem = scan.directory_state.label
            remedy = _DIRECTORY_REMEDIES[scan.directory_state]
            yield probe_result.ProbeFinding(
                subject, probe_result.ProbeVerdict.BROKEN, problem, remedy
            )
        for file in scan.files:
            if file.state != TextfileState.OK:
                yield probe_result.ProbeFinding(
                    f"textfile {file.name}",
                    probe_result.ProbeVerdict.BROKEN,
                    f"{file.state.label}: {file.problem}",
                    "correct the file",
                )

    def _log_directory(self, state: DirectoryState) -> None:
        if state != self._directory_state:
            self._directory_state = state
            if state is DirectoryState.OK:
                log.info("textfile_directory_recovered", directory=self._settings.directory)
            else:
                advice = _DIRECTORY_REMEDIES[state]
                log.warning("textfile_directory_degraded", reason=state.label, advice=advice)

    def _changes(self, files: Sequence[Textfile], now: NodeTimestamp) -> Iterator[Event]:
        """Log changed states and yield their events; a file that is accepted from the start has none.

        Of very many changes at once, which a tenant could make in every read, the rest is a number in the log.
        """
        before, self._states = self._states, {file.name: file.state for file in files}
        changed = [file for file in files if file.state != before.get(file.name, TextfileState.OK)]
        for file in changed[:MAX_CHANGES]:
            last = before.get(file.name, TextfileState.OK)
            if file.state == TextfileState.OK:
                log.info("textfile_accepted", file=file.name, series=file.series_count)
            else:
                reason = file.state.label
                log.warning(
                    "textfile_rejected", file=file.name, reason=reason, problem=file.problem
                )
            facts = fact_readers.nonempty_facts(
                before=last.label, after=file.state.label, problem=file.problem
            )
            yield Event(catalog.TEXTFILE_EVENT, file.entity, now.wall_ns, now.boot_ns, facts)
        if len(changed) > MAX_CHANGES:
            log.warning("textfile_changes_suppressed", files=len(changed) - MAX_CHANGES)
