"""Parser of textfiles: the Prometheus text format, with every value as the exact number that the file states.

Lines are parsed by prometheus-client. It is laxer than Prometheus, converts values to float64 and renames counters:
so names and values are taken from the lines, and what Prometheus would reject is rejected here.

A file is accepted whole or not at all. Problems name the line and do not quote it: it may be from a file that
not everyone may read.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from railscope import RailscopeError, exposition, textfile_series
from railscope.catalog.declare import NO_BOUND
from railscope.catalog.textfile import TextfileState
from railscope_agent.sampling.answer_readings import MALFORMED_ERRORS

if TYPE_CHECKING:
    from prometheus_client.core import Metric as ParsedMetric
    from prometheus_client.samples import Sample as ParsedSample

MAX_LINE_CHARACTERS = 8192
"""The time for a line grows with the square of its length."""
MAX_SERIES_CHARACTERS = 2000
RESERVED_NAME = re.compile(
    r"(?:railscope|python|process|scrape|DCGM_FI)_.*|up|ALERTS(?:_FOR_STATE)?"
)
"""Names of the metrics of the agent, of Python programs, and of those that Prometheus writes itself."""
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{)?")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_TYPES = {"unknown": textfile_series.UNTYPED} | {
    name: name for name in ("counter", "gauge", "histogram", "summary")
}
_LABEL_OF_TYPE = {"histogram": "le", "summary": "quantile"}


class TextfileError(RailscopeError, ValueError):
    """A file that is rejected, with the state and the problem."""

    def __init__(self, state: TextfileState, problem: str) -> None:
        super().__init__(problem)
        self.state = state


@dataclass(frozen=True, slots=True)
class TextfileSeries:
    """One series: name and labels as text, and its value."""

    text: str
    mantissa: int
    exponent: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A sample with its line and the suffix of its name: `_bucket`, `_sum`, `_count` or none."""

    number: int
    suffix: str
    sample: ParsedSample
    series: TextfileSeries


@dataclass(slots=True)
class TextfileFamily:
    """One metric with its series."""

    name: str
    type: str
    help: str
    samples: list[_Line] = field(default_factory=list)

    @property
    def series(self) -> list[TextfileSeries]:
        """Its series, those of one distribution together."""
        return [line.series for line in self.samples]

    @property
    def sample_names(self) -> list[str]:
        """Names of its samples."""
        return textfile_series.sample_names(self.name, self.type)


@dataclass(slots=True)
class _CountedLines:
    """Lines of a file; `number` is that of the line that was read last."""

    lines: list[str]
    number: int = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self.lines, 1):
            self.number = number
            yield line


def parse_textfile(content: bytes, max_series: int) -> list[TextfileFamily]:
    """Return the metrics of a file. Raises TextfileError."""
    lines = _checked_lines(content)
    # Counted before the parsing: a file of a tenant must not take the time of a million lines.
    count = sum(map(_is_sample, lines))
    if count > max_series:
        problem = f"{count} series: expected at most {max_series}, for all files"
        raise TextfileError(TextfileState.LIMIT, problem)
    samples = [(number, line) for number, line in enumerate(lines, 1) if _is_sample(line)]
    return _families(_parsed(lines), samples)


def _parsed(lines: list[str]) -> Iterator[ParsedMetric]:
    """Yield the metrics of prometheus-client, one after another: a file may have very many without samples."""
    from prometheus_client.parser import text_fd_to_metric_families  # noqa: PLC0415 - only with a directory

    counted = _CountedLines(lines)
    metrics = iter(text_fd_to_metric_families(counted))  # type: ignore[arg-type]  # it iterates over lines
    while True:
        try:
            metric = next(metrics, None)
        except MALFORMED_ERRORS as error:
            raise _malformed(counted.number, "not in the Prometheus text format") from error
        if metric is None:
            return
        yield metric


def _malformed(line: int, problem: str) -> TextfileError:
    return TextfileError(TextfileState.MALFORMED, f"line {line}: {problem}")


def _checked_lines(content: bytes) -> list[str]:
    """Return the lines, without space around them. Raises TextfileError."""
    # A file that is written in place may end within a number.
    if content and not content.endswith(b"\n"):
        problem = (
            "no line break at the end; fix: write a file of another name and rename it to *.prom"
        )
        raise TextfileError(TextfileState.INCOMPLETE, problem)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _malformed(content.count(b"\n", 0, error.start) + 1, "not UTF-8") from error
    lines = [line.strip(" \t\r") for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARACTERS:
            problem = (
                f"line {number}: {len(line)} characters: expected at most {MAX_LINE_CHARACTERS}"
            )
            raise TextfileError(TextfileState.LIMIT, problem)
        if not line.replace("\t", "").isprintable():
            raise _malformed(number, "unprintable character")
    return lines


def _is_sample(line: str) -> bool:
    return line != "" and line[0] != "#"


def _families(
    parsed: Iterable[ParsedMetric], lines: Iterable[tuple[int, str]]
) -> list[TextfileFamily]:
    """Return the metrics by name, with the samples in the order of the file. Raises TextfileError."""
    families: dict[str, TextfileFamily] = {}
    owners: dict[str, str] = {}
    texts: set[str] = set()
    numbered = iter(lines)
    for metric in parsed:
        type_ = _TYPES.get(metric.type, "")
        for sample in metric.samples:
            number, line = next(numbered)
            name, value = _name_and_value(number, line, sample)
            if not type_:
                problem = "invalid type: expected counter, gauge, histogram, summary or untyped"
                raise _malformed(number, problem)
            # prometheus-client removes _total from the names of counters; files and queries have it.
            key = metric.name if type_ in textfile_series.SUFFIXES else name
            family = families.get(key)
            if family is None:
                help_ = textfile_series.help_text(metric.documentation)
                family = families[key] = TextfileFamily(key, type_, help_)
                _claim_names(number, family, owners)
            elif type_ not in {family.type, textfile_series.UNTYPED}:
                problem = f"line {number}: {key}: its type is stated after its first sample"
                raise TextfileError(TextfileState.TYPE_CONFLICT, problem)
            series = TextfileSeries(_series_text(number, name, sample.labels), *value)
            if series.text in texts:
                problem = f"line {number}: {name}: name and labels of an earlier line"
                raise TextfileError(TextfileState.DUPLICATE, problem)
            texts.add(series.text)
            family.samples.append(_Line(number, name.removeprefix(key), sample, series))
    for family in families.values():
        if family.type in _LABEL_OF_TYPE:
            _order_distribution(family)
    return list(families.values())


def _name_and_value(number: int, line: str, sample: ParsedSample) -> tuple[str, tuple[int, int]]:
    match = _NAME.match(line)
    if not match or sample.name not in {match[1], f"{match[1]}_total"}:
        raise _malformed(number, "the line does not begin with a name of letters, digits, _ and :")
    if sample.timestamp is not None:
        raise _malformed(number, "timestamp or exemplar: expected only a value; fix: remove it")
    # The last brace: a label's value may contain others.
    value = line.rpartition("}")[2] if match[2] else line[match.end() :]
    try:
        return match[1], textfile_series.encode_value(value.strip())
    except ValueError as error:
        raise _malformed(number, "invalid value: expected a decimal number of float64") from error


def _claim_names(number: int, family: TextfileFamily, owners: dict[str, str]) -> None:
    """Reject a metric with reserved names of samples, or with those of another metric."""
    for name in dict.fromkeys((family.name, *family.sample_names)):
        if RESERVED_NAME.fullmatch(name):
            problem = (
                f"line {number}: {name}: expected a name that neither the agent nor Prometheus uses"
            )
            raise TextfileError(TextfileState.RESERVED_NAME, problem)
        if owners.setdefault(name, family.name) != family.name:
            problem = f"line {number}: {name}: also the name of samples of {owners[name]}"
            raise TextfileError(TextfileState.TYPE_CONFLICT, problem)


def _series_text(number: int, name: str, labels: dict[str, str]) -> str:
    """Return name and labels; they are sorted, and without empty ones, which Prometheus drops."""
    if not all(map(_LABEL.fullmatch, labels)):
        problem = "invalid label: expected letters, digits and _, and not __ at the start"
        raise _malformed(number, problem)
    present = sorted((label, value) for label, value in labels.items() if value)
    text = exposition.labelled(name, present)[:-1]
    if not text.isprintable():
        raise _malformed(number, "unprintable character in a label")
    if len(text) > MAX_SERIES_CHARACTERS:
        problem = f"line {number}: name and labels of {len(text)} characters: expected at most {MAX_SERIES_CHARACTERS}"
        raise TextfileError(TextfileState.LIMIT, problem)
    return text


def _order_distribution(family: TextfileFamily) -> None:
    """Sort the samples of histograms and summaries by their labels, and check their buckets and quantiles.

    OpenMetrics requires this order, and every bucket of a histogram up to +Inf.
    """
    groups: dict[tuple[tuple[str, str], ...], list[_Line]] = {}
    bounds = {}
    label = _LABEL_OF_TYPE[family.type]
    for line in family.samples:
        labels = dict(line.sample.labels)
        bound = labels.pop(label, None)
        if (line.suffix in {"_bucket", ""}) is (bound is None):
            raise _malformed(
                line.number, f"invalid {family.type}: label {label} is missing or misplaced"
            )
        bounds[line.number] = _bound(line.number, label, bound)
        groups.setdefault(tuple(sorted(labels.items())), []).append(line)
    family.samples = []
    for group in groups.values():
        group.sort(key=lambda line: bounds[line.number])
        if family.type == "histogram":
            _check_histogram([line for line in group if line.suffix == "_bucket"], group)
        family.samples += group


def _bound(number: int, label: str, text: str | None) -> float:
    """Return the place of a sample in its distribution: the bound of a bucket, or the quantile; others follow."""
    if text is None:
        return math.inf
    try:
        mantissa, exponent = textfile_series.encode_value(text)
        bound = float(textfile_series.decode_value(mantissa, exponent))
    except ValueError as error:
        raise _malformed(number, f"invalid label {label}: expected a number") from error
    if math.isnan(bound):
        raise _malformed(number, f"invalid label {label}: expected a number")
    return bound


def _check_histogram(buckets: Sequence[_Line], group: Sequence[_Line]) -> None:
    """Reject a histogram whose buckets are not cumulative, or do not end in its count."""
    number = group[0].number
    bounds = [float(line.sample.labels["le"]) for line in buckets]
    values = [line.sample.value for line in buckets]
    counts = [line.sample.value for line in group if line.suffix == "_count"]
    if not buckets or buckets[-1].sample.labels["le"] != NO_BOUND:
        raise _malformed(number, "incomplete histogram: expected a bucket up to +Inf")
    is_cumulative = all(map(operator.lt, bounds, bounds[1:])) and sorted(values) == values
    if counts != values[-1:] or not is_cumulative:
        raise _malformed(number, "invalid histogram: expected cumulative buckets up to its count")
