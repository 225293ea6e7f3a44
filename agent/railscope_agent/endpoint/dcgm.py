"""Readings under the names, labels and units of NVIDIA's dcgm-exporter.

`dcgm_table` defines the formulas. The columns of the readings are resolved once per set of schemas; a
scrape sums integers and divides at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from railscope.catalog.declare import EntityKind, Metric, MetricKind
from railscope.catalog.entities import GPU, GPU_ADDRESS, MIG
from railscope.exposition import TextFormat, labelled
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent
from railscope_agent.endpoint.dcgm_table import (
    DCGM_METRICS,
    EACH,
    DcgmFormula,
    DcgmMetric,
    FormulaTerm,
)

EntityKey = tuple[str, ...]
ReadingPosition = tuple[int, int]
"""Position of a reading: index of the frame, index of the column."""

_USED_METRICS = {
    term.metric
    for row in DCGM_METRICS
    for formula in row.formulas
    for term in (*formula.terms, *formula.denominator)
} | {row.otherwise_zero for row in DCGM_METRICS if row.otherwise_zero}


@dataclass(frozen=True, slots=True)
class DcgmDevice:
    """A GPU or a MIG device: its labels, and its part of entity keys."""

    labels: tuple[tuple[str, str], ...]
    key: dict[str, str]

    def own_key(self, kind: EntityKind) -> EntityKey:
        """Return the leading key parts of this device's entities of a kind."""
        return tuple(self.key[label] for label in kind.labels if label in self.key)


class DcgmExposition:
    """Renders expositions from the latest frames; caches the resolved columns per set of schemas."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._schemas: tuple[Schema, ...] = ()
        self._blocks: list[tuple[DcgmMetric, list[_DcgmSample]]] = []

    def render(self, frames: Iterable[Frame], text_format: TextFormat) -> str:
        """Render one exposition of all frames."""
        current = [
            frame
            for frame in frames
            if any(metric in _USED_METRICS for metric, _ in frame.schema.groups)
        ]
        schemas = tuple(frame.schema for frame in current)
        if schemas != self._schemas:
            self._blocks = list(_blocks(schemas, self._hostname))
            self._schemas = schemas
        parts = []
        for row, samples in self._blocks:
            lines = [line for sample in samples if (line := sample.line(current))]
            if lines:
                parts += [_header(row, text_format), *lines]
        if text_format is TextFormat.OPENMETRICS:
            parts.append("# EOF\n")
        return "".join(parts)


def _header(row: DcgmMetric, text_format: TextFormat) -> str:
    kind = "counter" if row.kind is MetricKind.COUNTER else "gauge"
    if text_format is TextFormat.OPENMETRICS and row.kind is MetricKind.COUNTER:
        kind = "unknown"  # OpenMetrics counters must end in _total, and these names are fixed
    return f"# HELP {row.name} {row.sentence}\n# TYPE {row.name} {kind}\n"


# At each scrape --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ReadingSum:
    """Readings with their factors, by term."""

    terms: tuple[tuple[tuple[ReadingPosition, int], ...], ...]

    def total(self, frames: Sequence[Frame]) -> int | None:
        """Return the sum; None if a term has no reading."""
        total = 0
        for term in self.terms:
            present = 0
            for (frame, column), factor in term:
                reading = frames[frame].reading(column)
                if reading is Absent.UNSUPPORTED:
                    continue
                if isinstance(reading, Absent):
                    return None
                total += reading * factor
                present += 1
            if not present:
                return None
        return total


@dataclass(frozen=True, slots=True)
class _FormulaColumns:
    """Columns of one formula: a sum over a divisor, and over another sum if there is one."""

    dividend: _ReadingSum
    divisor: int
    denominator: _ReadingSum | None

    def text(self, frames: Sequence[Frame]) -> str | None:
        """Return the value as text, exact if it is a whole number."""
        dividend, divisor = self.dividend.total(frames), self.divisor
        if self.denominator:
            divisor *= self.denominator.total(frames) or 0
        if dividend is None or not divisor:
            return None
        # Integers are exact at any size; a float would round an energy counter in millijoules after weeks.
        whole, rest = divmod(dividend, divisor)
        return repr(dividend / divisor) if rest else str(whole)


@dataclass(frozen=True, slots=True)
class _DcgmSample:
    prefix: str
    formulas: tuple[_FormulaColumns, ...]
    otherwise_zero: _ReadingSum | None

    def line(self, frames: Sequence[Frame]) -> str:
        """Return the exposition line, empty without a value."""
        for formula in self.formulas:
            text = formula.text(frames)
            if text is not None:
                return f"{self.prefix}{text}\n"
        if self.otherwise_zero and self.otherwise_zero.total(frames) is not None:
            return f"{self.prefix}0\n"
        return ""


# Once for the schemas --------------------------------------------------------------------------


class _SchemaColumns:
    """Columns of the schemas by metric and GPU."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._columns: dict[tuple[Metric, EntityKey], list[tuple[EntityKey, ReadingPosition]]] = {}
        for frame, schema in enumerate(schemas):
            for column, (metric, entity) in enumerate(schema.columns):
                positions = self._columns.setdefault((metric, entity.whole_key), [])
                positions.append((entity.key, (frame, column)))

    def sample(
        self, row: DcgmMetric, formulas: Iterable[DcgmFormula], device: DcgmDevice
    ) -> _DcgmSample | None:
        """Return a row's sample of a device; None if no source has its readings."""
        candidates = (self._formula_columns(row, formula, device) for formula in formulas)
        columns = tuple(candidate for candidate in candidates if candidate)
        zero = None
        if row.otherwise_zero:
            zero = self._sum([(FormulaTerm(row.otherwise_zero), 1)], device)
        return (
            _DcgmSample(labelled(row.name, device.labels), columns, zero)
            if columns or zero
            else None
        )

    def _formula_columns(
        self, row: DcgmMetric, formula: DcgmFormula, device: DcgmDevice
    ) -> _FormulaColumns | None:
        per_unit = row.measure.per_base_unit
        factors = [term.metric.scale * term.weight * per_unit for term in formula.terms]
        denominator_factors = [term.metric.scale * term.weight for term in formula.denominator]
        # All factors become integers: a scrape then only adds and multiplies.
        divisor = lcm(*(factor.denominator for factor in factors))
        denominator_divisor = lcm(*(factor.denominator for factor in denominator_factors))
        whole_factors = [int(factor * divisor) * denominator_divisor for factor in factors]
        whole_denominator_factors = [
            int(factor * denominator_divisor) for factor in denominator_factors
        ]
        dividend = self._sum(zip(formula.terms, whole_factors, strict=True), device)
        denominator = self._sum(
            zip(formula.denominator, whole_denominator_factors, strict=True), device
        )
        if dividend is None or denominator is None:
            return None
        return _FormulaColumns(dividend, divisor, denominator if formula.denominator else None)

    def _sum(
        self, terms: Iterable[tuple[FormulaTerm, int]], device: DcgmDevice
    ) -> _ReadingSum | None:
        sums = []
        for term, factor in terms:
            readings = tuple(self._readings(term, factor, device))
            if not readings:
                return None
            sums.append(readings)
        return _ReadingSum(tuple(sums))

    def _readings(
        self, term: FormulaTerm, factor: int, device: DcgmDevice
    ) -> Iterator[tuple[ReadingPosition, int]]:
        kind = term.metric.about
        device_key = (*device.own_key(kind), *term.part)
        for key, place in self._columns.get((term.metric, device.own_key(kind.outermost)), ()):
            if not _matches_key(key, device_key):
                continue
            if term.weights is None:
                yield place, factor
            elif key[-1] in term.weights:
                yield place, factor * term.weights[key[-1]]


def _matches_key(key: EntityKey, device_key: EntityKey) -> bool:
    return len(key) == len(device_key) and all(
        want in {EACH, have} for have, want in zip(key, device_key, strict=True)
    )


def _blocks(
    schemas: Sequence[Schema], hostname: str
) -> Iterator[tuple[DcgmMetric, list[_DcgmSample]]]:
    """Yield every row with its samples: of the GPU instances if they have readings, else of the GPU."""
    columns = _SchemaColumns(schemas)
    gpus = _devices(schemas, hostname)
    for row in DCGM_METRICS:
        samples: list[_DcgmSample | None] = []
        for gpu, instances in gpus:
            if row.mig and instances:
                samples += [columns.sample(row, [row.mig], mig) for mig in instances]
            else:
                samples.append(columns.sample(row, row.gpu, gpu))
        yield row, [sample for sample in samples if sample]


def _devices(schemas: Sequence[Schema], hostname: str) -> list[tuple[DcgmDevice, list[DcgmDevice]]]:
    """Return the GPUs in the order of their indices, each with its GPU instances."""
    entities = [entity for schema in schemas for entity in schema.entities if entity.facts]
    gpus = {entity.key: entity for entity in entities if entity.kind is GPU}
    migs = {entity.key: entity for entity in entities if entity.kind is MIG}
    return [
        (
            _device(gpu, None, hostname),
            [_device(gpu, mig, hostname) for mig in _instances(gpu, migs.values())],
        )
        for gpu in sorted(gpus.values(), key=lambda gpu: int(gpu.facts["index"]))
    ]


def _instances(gpu: Entity, migs: Iterable[Entity]) -> list[Entity]:
    """Return one MIG device per GPU instance: readings shared by compute instances are exported once."""
    instances = [mig for mig in migs if mig.whole_key == gpu.key]
    # Descending, so that the first compute instance is the last assigned below, and remains.
    instances.sort(key=lambda mig: -int(mig.facts["compute_instance"]))
    first = {int(mig.facts["gpu_instance"]): mig for mig in instances}
    return [first[instance] for instance in sorted(first)]


def _device(gpu: Entity, mig: Entity | None, hostname: str) -> DcgmDevice:
    facts = gpu.facts
    labels = {
        "gpu": facts["index"],
        "UUID": gpu.key[0],
        "pci_bus_id": _bus_id(facts.get("pci_address", "")),
        "device": f"nvidia{facts['minor']}" if "minor" in facts else "",
        "modelName": facts.get("model", ""),
        "GPU_I_PROFILE": _profile(mig.facts.get("profile", "")) if mig else "",
        "GPU_I_ID": mig.facts["gpu_instance"] if mig else "",
        "Hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": facts.get("driver", ""),
    }
    key = dict(zip(GPU.labels, gpu.key, strict=True))
    if "pci_address" in facts:
        key |= dict(zip(GPU_ADDRESS.labels, (facts["pci_address"],), strict=True))
    if mig:
        key |= dict(zip(MIG.labels, mig.key, strict=True))
    return DcgmDevice(tuple((label, value) for label, value in labels.items() if value), key)


def _bus_id(address: str) -> str:
    """Return a PCI address as NVML and DCGM write it: 00000000:3B:00.0."""
    domain, _, rest = address.upper().partition(":")
    return f"{domain:0>8}:{rest}" if rest else address


def _profile(name: str) -> str:
    """Return the GPU instance's profile; a MIG device with part of its compute slices has 1c.3g.40gb."""
    parts = name.split(".")
    return ".".join(parts[1:]) if parts[0].endswith("c") else name
