"""Prometheus text format and OpenMetrics, generated from the catalog's declarations.

An exposition consists of blocks: the sample lines of one metric. Label texts are built once per schema; a
scrape fills in numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache

from railscope.catalog import INFO, METRICS, ORDER, SUBJECT_OF, entities, rollups
from railscope.catalog.declare import BUCKET, NO_BOUND, SUM, Metric, MetricDetail, MetricKind
from railscope.frame import Entity, Frame, Schema
from railscope.reading import PRESENT, from_stored
from railscope.textfile_series import TextfileTemplate


class TextFormat(Enum):
    """The two text formats, by their content types."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @staticmethod
    def negotiate(accept: str) -> TextFormat:
        """Return the format that an Accept header selects; OpenMetrics only if it is named."""
        return (
            TextFormat.OPENMETRICS
            if "application/openmetrics-text" in accept
            else TextFormat.PROMETHEUS
        )


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


_OWN_TYPES = {MetricKind.COUNTER, MetricKind.HISTOGRAM}


@cache
def header(metric: Metric, text_format: TextFormat) -> str:
    """Return HELP, TYPE and, if the format supports it, UNIT of a metric."""
    help_ = metric.help.translate(_HELP_ESCAPES)
    if text_format is TextFormat.PROMETHEUS:
        type_ = str(metric.kind) if metric.kind in _OWN_TYPES else "gauge"
        return f"# HELP {metric.name} {help_}\n# TYPE {metric.name} {type_}\n"
    name = metric.name
    type_ = "gauge"
    if metric.kind is MetricKind.COUNTER:
        name, type_ = name.removesuffix("_total"), "counter"
    elif metric.kind is MetricKind.INFO:
        name, type_ = name.removesuffix("_info"), "info"
    elif metric.kind is MetricKind.HISTOGRAM:
        type_ = "histogram"
    unit = f"# UNIT {name} {metric.unit}\n" if metric.unit else ""
    return f"# HELP {name} {help_}\n# TYPE {name} {type_}\n{unit}"


def labelled(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return name and labels of a sample, up to the position of the number."""
    inner = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in labels)
    return f"{name}{{{inner}}} " if inner else f"{name} "


def number(metric: Metric, stored: int) -> str:
    """Format a stored integer in base units. Integers stay exact at any size."""
    value = from_stored(stored, counter=metric.kind is MetricKind.COUNTER)
    numerator, denominator = metric.scale.as_integer_ratio()
    if denominator == 1:
        return str(value * numerator)
    return repr(value * numerator / denominator)


def entity_prefix(metric: Metric, entity: Entity, extra: Sequence[tuple[str, str]] = ()) -> str:
    """Return name and labels of the sample of an entity."""
    labels = [*zip(entity.kind.labels, entity.key, strict=True), *extra]
    if metric.kind is not MetricKind.HISTOGRAM:
        return labelled(metric.name, labels)
    if labels[-1] == (BUCKET, SUM):
        return labelled(f"{metric.name}_sum", labels[:-1])
    bucket = labelled(f"{metric.name}_bucket", labels)
    if labels[-1] != (BUCKET, NO_BOUND):
        return bucket
    return f"{bucket}\n{labelled(f'{metric.name}_count', labels[:-1])}"


@dataclass(frozen=True, slots=True)
class MetricSelection:
    """Selection of metrics for an exposition: by detail, and by the names of groups and sources.

    A group is a subject of the catalog. `group_details` are details of single groups, None for a group that
    is switched off. If `collected` is not empty, only these groups and sources are contained; `excluded`
    ones never are.
    """

    detail: MetricDetail = MetricDetail.FULL
    group_details: tuple[tuple[str, MetricDetail | None], ...] = ()
    collected: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    def contains(self, metric: Metric, source: str) -> bool:
        """True if the exposition contains a metric from a source."""
        group = SUBJECT_OF.get(metric.name, "")
        names = {group, source}
        if self.excluded & names or (self.collected and not self.collected & names):
            return False
        detail = dict(self.group_details).get(group, self.detail)
        return detail is not None and detail.includes(metric.detail)


EVERYTHING = MetricSelection()


_TOTALS = frozenset(metric.total for metric in METRICS.values() if metric.total)
"""Names of the totals that show that an omitted series is zero, and not unread."""


class _MetricLines:
    """Sample lines of one metric of a schema; rendered again only if a value or a reason has changed."""

    __slots__ = ("_block", "_prefixes", "_rendered", "_totals", "end", "metric", "start")

    def __init__(
        self, metric: Metric, start: int, prefixes: list[str], totals: Sequence[int | None]
    ) -> None:
        self.metric, self.start, self.end = metric, start, start + len(prefixes)
        self._totals = totals if metric.sparse else ()
        """Column with the total of each sample of a sparse metric, if the schema has it."""
        is_state = metric.kind is MetricKind.STATE
        self._prefixes = [_state_prefix(prefix) for prefix in prefixes] if is_state else prefixes
        self._rendered: tuple[array[int], bytes, Sequence[bool]] = array("q"), b"", ()
        self._block = ""

    def render(self, frame: Frame) -> str:
        """Return the lines of the present values; zeros of a sparse metric are omitted if its total is present."""
        values = frame.values[self.start : self.end]
        codes = bytes(frame.reasons[self.start : self.end]) if frame.reasons else b""
        lacks_total: Sequence[bool] = ()
        if self._totals and frame.reasons:
            lacks_total = [
                total is not None and frame.reasons[total] != PRESENT for total in self._totals
            ]
        if (values, codes, lacks_total) != self._rendered:
            self._rendered = values, codes, lacks_total
            self._block = self._render(values, codes, lacks_total)
        return self._block

    def _render(self, values: array[int], codes: bytes, lacks_total: Sequence[bool]) -> str:
        is_sparse = self.metric.sparse
        if not is_sparse and not any(codes):
            return _lines(self.metric, self._prefixes, values)
        indexes = [
            i
            for i, value in enumerate(values)
            if (not codes or codes[i] == PRESENT)
            and (value or not is_sparse or (lacks_total and lacks_total[i]))
        ]
        if not indexes:
            return ""
        prefixes = [self._prefixes[i] for i in indexes]
        return _lines(self.metric, prefixes, array("q", [values[i] for i in indexes]))


class ExpositionTemplate:
    """A schema's sample lines with placeholders for the numbers, of the selected metrics."""

    def __init__(self, schema: Schema, selection: MetricSelection = EVERYTHING) -> None:
        self.info = _info_lines(schema, selection)
        self._metrics: list[_MetricLines] = []
        self._frame: Frame | None = None
        self._blocks: dict[str, str] = {}
        self.textfiles: TextfileTemplate | None = None
        """Series of textfiles, if the schema has any."""
        start = 0
        places = {
            (metric.name, entity.key): place
            for place, (metric, entity) in enumerate(schema.columns)
            if metric.name in _TOTALS
        }
        for metric, members in schema.groups:
            if metric.kind is MetricKind.INFO or not selection.contains(metric, schema.stream):
                pass
            elif metric.about is entities.TEXTFILE_SERIES:
                self.textfiles = self.textfiles or TextfileTemplate(schema)
            else:
                about = [schema.entities[member] for member in members]
                prefixes = [entity_prefix(metric, entity) for entity in about]
                totals = [places.get((metric.total, entity.whole_key)) for entity in about]
                self._metrics.append(_MetricLines(metric, start, prefixes, totals))
            start += len(members)

    def render(self, frame: Frame) -> Mapping[str, str]:
        """Return sample lines by metric. Columns without a value are omitted."""
        last, self._frame = self._frame, frame  # most sources are read less often than scraped
        if last is None or not (last is frame or _has_same_readings(last, frame)):
            blocks = ((lines.metric.name, lines.render(frame)) for lines in self._metrics)
            self._blocks = {name: block for name, block in blocks if block}
        return self._blocks


def _has_same_readings(last: Frame, frame: Frame) -> bool:
    return last.values == frame.values and last.reasons == frame.reasons


def _lines(metric: Metric, prefixes: list[str], values: array[int]) -> str:
    if metric.kind is MetricKind.STATE:
        return "".join(
            f'{prefix}{metric.states.get(value, value)}"}} 1\n'
            for prefix, value in zip(prefixes, values, strict=True)
        )
    if metric.kind is MetricKind.HISTOGRAM:
        return _histogram(metric, prefixes, values)
    numerator, denominator = metric.scale.as_integer_ratio()
    # Stored counters beyond 63 bits are negative.
    if metric.kind is MetricKind.COUNTER and min(values) < 0:
        return "".join(f"{p}{number(metric, v)}\n" for p, v in zip(prefixes, values, strict=True))
    pairs = zip(prefixes, values, strict=True)
    if denominator != 1:
        return "".join([f"{p}{v * numerator / denominator!r}\n" for p, v in pairs])
    if numerator != 1:
        return "".join([f"{p}{v * numerator}\n" for p, v in pairs])
    return "".join([f"{p}{v}\n" for p, v in pairs])


def _histogram(metric: Metric, prefixes: list[str], values: array[int]) -> str:
    """Return buckets and sums in column order; the last bucket also serves as the count."""
    lines = []
    for prefix, value in zip(prefixes, values, strict=True):
        first, _, second = prefix.partition("\n")
        text = number(metric, value) if prefix.startswith(f"{metric.name}_sum") else str(value)
        lines.append(f"{first}{text}\n{second}{text}\n" if second else f"{first}{text}\n")
    return "".join(lines)


def _state_prefix(prefix: str) -> str:
    """Return the sample of a state up to the name of the state: only the present one is exposed."""
    return f'{prefix[:-2]},state="' if prefix.endswith("} ") else f'{prefix[:-1]}{{state="'


def _info_lines(schema: Schema, selection: MetricSelection) -> dict[str, dict[str, str]]:
    """Return info samples by metric and identity, for every entity that has facts."""
    lines: dict[str, dict[str, str]] = {}
    for entity in schema.entities:
        metric = INFO.get(entity.kind.name)
        if not metric or not entity.facts or not selection.contains(metric, schema.stream):
            continue
        facts = [(name, entity.facts.get(name, "")) for name in entity.kind.facts]
        identity = entity_prefix(metric, entity)
        lines.setdefault(metric.name, {})[identity] = entity_prefix(metric, entity, facts) + "1\n"
    return lines


def declared(name: str) -> Metric:
    """Return the declaration of a metric, derived ones included. Raises KeyError."""
    return METRICS[name] if name in METRICS else rollups()[name].metric


def render_blocks(blocks: Mapping[str, str], text_format: TextFormat, textfiles: str = "") -> str:
    """Return a complete exposition: every block below its header, in catalog order, and those of textfiles."""
    parts: list[str] = []
    for name, head in _ordered_headers(tuple(blocks), text_format.value):
        parts += head, blocks[name]
    parts.append(textfiles)
    if text_format is TextFormat.OPENMETRICS:
        parts.append("# EOF\n")
    return "".join(parts)


@lru_cache(maxsize=8)
def _ordered_headers(names: tuple[str, ...], content_type: str) -> list[tuple[str, str]]:
    """Return the metrics of an exposition in catalog order with their headers; most scrapes have the same."""
    last, text_format = len(ORDER), TextFormat(content_type)
    ordered = sorted(names, key=lambda name: (ORDER.get(name, last), name))
    return [(name, header(declared(name), text_format)) for name in ordered]


class Exposition:
    """Expositions of the latest frames of several sources, with templates cached per schema."""

    def __init__(self, selection: MetricSelection = EVERYTHING) -> None:
        self._selection = selection
        self._templates: dict[Schema, ExpositionTemplate] = {}

    def render(self, frames: Iterable[Frame], text_format: TextFormat) -> str:
        """Return one exposition of all frames."""
        blocks: dict[str, str] = {}
        info: dict[str, dict[str, str]] = {}
        current = list(frames)
        templates = self._templates
        # Templates of former schemas are dropped.
        self._templates = {
            schema: templates.get(schema) or ExpositionTemplate(schema, self._selection)
            for schema in (frame.schema for frame in current)
        }
        for frame in current:
            template = self._templates[frame.schema]
            for name, block in template.render(frame).items():
                blocks[name] = blocks.get(name, "") + block
            for name, lines in template.info.items():
                info.setdefault(name, {}).update(lines)
        blocks |= {name: "".join(lines.values()) for name, lines in info.items()}
        return render_blocks(blocks, text_format, self._textfile_series(current, text_format))

    def _textfile_series(self, frames: Iterable[Frame], text_format: TextFormat) -> str:
        """Return the series of textfiles; they have names of their own."""
        is_openmetrics = text_format is TextFormat.OPENMETRICS
        return "".join(
            template.render(frame, is_openmetrics=is_openmetrics)
            for frame in frames
            if (template := self._templates[frame.schema].textfiles)
        )
