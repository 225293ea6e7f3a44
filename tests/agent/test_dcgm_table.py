"""The table of dcgm-exporter's names matches the catalog, the sources, real output and arithmetic."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.frames import STORED
from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import ORIGIN
from support.shared import capture_path

from railscope.catalog import METRICS, MetricKind
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU, GPU_ADDRESS, MIG, NVLINK
from railscope.catalog.gpu import THROTTLE_BITS
from railscope.catalog.gpu_health import GPU_LAST_XID
from railscope.exposition import TextFormat
from railscope.frame import Column, Entity, Frame, NodeTimestamp, Schema
from railscope.reading import from_stored
from railscope_agent.endpoint.dcgm import DcgmExposition
from railscope_agent.endpoint.dcgm_table import DCGM_METRICS, EACH, DcgmMetric, FormulaTerm
from railscope_agent.sources.nvidia import activity, health, mig_devices, value_tables
from railscope_agent.sources.nvidia.call_table import CallTable
from railscope_agent.sources.nvidia.nvlink import traffic_fields

_PAGE = Path(__file__).parents[2] / "docs/integrations.md"
_NOT_SERVED_ROWS = re.findall(
    r"^\| (`.*?`) \| (.*) \|$",
    _PAGE.read_text().partition("\n## Names of dcgm-exporter that are not served\n")[2],
    re.MULTILINE,
)
NOT_SERVED = {tuple(re.findall(r"`(.+?)`", names)): reason for names, reason in _NOT_SERVED_ROWS}
"""Reasons of the names that the page lists as not served."""
CAPTURE = "dcgm/datadog-dcgm-serve-metrics.prom"
ADDRESS = "0000:3b:00.0"
GPU_ENTITY = Entity(
    GPU,
    ("GPU-1",),
    {"index": "0", "minor": "0", "pci_address": ADDRESS, "model": "NVIDIA L4", "driver": "590.48"},
)
SLICE = Entity(MIG, ("GPU-1", "MIG-1"), {"gpu_instance": "1", "compute_instance": "0"})
EACH_ROW = pytest.mark.parametrize("row", DCGM_METRICS, ids=lambda row: row.name)
Reading = tuple[Metric, tuple[str, ...]]


def terms(row: DcgmMetric) -> list[FormulaTerm]:
    return [term for formula in row.formulas for term in (*formula.terms, *formula.denominator)]


# The catalog and the sources -------------------------------------------------------------------


def test_every_name_occurs_once_and_is_described():
    names = [row.name for row in DCGM_METRICS]
    assert len(set(names)) == len(names)
    assert [
        name for name in names if not re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z0-9_]+", name)
    ] == []
    assert {row.kind for row in DCGM_METRICS} == {MetricKind.COUNTER, MetricKind.GAUGE}


@EACH_ROW
def test_a_row_is_made_of_metrics_of_the_catalog(row: DcgmMetric) -> None:
    for term in terms(row):
        assert METRICS[term.metric.name] is term.metric
        assert len(term.part) < len(term.metric.about.labels) or not term.part


def test_the_catalog_names_the_same_as_the_table():
    """A metric of ours is matched by the dividend of its formula, not by the divisor."""
    table: dict[str, set[str]] = defaultdict(set)
    for row in DCGM_METRICS:
        for formula in row.formulas:
            for term in formula.terms:
                table[term.metric.name].add(row.name)
    catalog = {
        name: set(metric.other_names["dcgm-exporter"].split(", "))
        for name, metric in METRICS.items()
        if "dcgm-exporter" in metric.other_names
    }
    assert catalog == table


def read_by_the_sources() -> set[tuple[Metric, tuple[str, ...]]]:
    """Every metric that a source fills from NVML, with the part of the device it is about."""
    host = FakeHost()
    add_gpus(host, 1)
    host.calls["nvml.nvmlDeviceGetNumFans(0)"] = 1
    host.calls["nvml.nvmlDeviceGetSupportedClocksEventReasons(0)"] = sum(THROTTLE_BITS.values())
    link = Entity(NVLINK, ("GPU-1", "0"))
    asked = [
        value_tables.load_table(host, 0), health.HEALTH_TABLE, value_tables.settings_table(host, 0), activity.GPU_TABLE,
        activity.MIG_ACTIVITY_TABLE, mig_devices.MIG_TABLE, CallTable(fields=tuple(traffic_fields(0, link))),
    ]  # fmt: skip
    targets = [target for questions in asked for call in questions.calls for target in call.targets]
    targets += [field.target for questions in asked for field in questions.fields]
    return {(target.metric, target.part) for target in targets}


@EACH_ROW
def test_a_row_consists_of_metrics_that_the_sources_read(row: DcgmMetric) -> None:
    read = read_by_the_sources()
    for term in terms(row):
        if term.metric is GPU_LAST_XID:
            continue  # not from NVML's calls: from the kernel log and from events
        parts = [part for metric, part in read if metric is term.metric]
        assert any(
            all(want in {EACH, have} for want, have in zip(term.part, part, strict=True))
            for part in parts
            if len(part) == len(term.part)
        ), (term, parts)


def test_a_name_that_is_not_served_is_not_in_the_table_and_its_substitute_exists():
    served = {row.name for row in DCGM_METRICS}
    assert len(NOT_SERVED) > 20
    for names, why in NOT_SERVED.items():
        assert not served & set(names)
        for name in re.findall(r"DCGM_FI_[A-Z0-9_]+|railscope_\w+", why):
            assert name in served or name in METRICS, name


# A real page and arithmetic -------------------------------------------------------------------


def columns(owner: Entity, every: Iterator[FormulaTerm]) -> list[Column]:
    """A column for each reading that a term takes, of two links and of every reason."""
    found: dict[tuple[Metric, tuple[str, ...]], Entity] = {}
    for term in every:
        choices = [("0", "1") if part == EACH else (part,) for part in term.part]
        if term.weights:
            choices = [tuple(term.weights)]
        first = (ADDRESS,) if term.metric.about is GPU_ADDRESS else owner.key
        for part in product(*choices):
            whole = owner if term.metric.about is owner.kind else None
            entity = whole or Entity(term.metric.about, (*first, *part))
            found[term.metric, entity.key] = entity
    return [(metric, entity) for (metric, _), entity in found.items()]


OF_GPU = columns(
    GPU_ENTITY, (t for row in DCGM_METRICS for f in row.gpu for t in (*f.terms, *f.denominator))
)
OF_SLICE = columns(
    SLICE, (t for row in DCGM_METRICS if row.mig for t in (*row.mig.terms, *row.mig.denominator))
)


def exposition_of(found: list[Column], stored: list[int]) -> str:
    """Return the metrics text of columns with these integers, as the sources store them."""
    order = Schema.ordered(found)
    schema = Schema("test", tuple(found[position] for position in order), (GPU_ENTITY,))
    values = array("q", [stored[position] for position in order])
    frame = Frame(ORIGIN, schema, 1, NodeTimestamp(1, 1), values)
    return DcgmExposition("node-1").render([frame], TextFormat.PROMETHEUS)


FORMS = {
    "gpu": r"\d+",
    "UUID": r"GPU-[\w-]+",
    "device": r"nvidia\d+",
    "modelName": r"[\w ]+",
    "Hostname": r"[\w-]+",
    "DCGM_FI_DRIVER_VERSION": r"\d+\.\d+(\.\d+)?",
}


def test_types_and_labels_have_the_form_of_a_real_page():
    """Except one type: a rate is not a counter, and dcgm-exporter has changed that since."""
    real = {f.name: f for f in text_string_to_metric_families(capture_path(CAPTURE).read_text())}
    text = exposition_of(OF_GPU, list(range(1, len(OF_GPU) + 1)))
    ours = {f.name: f for f in text_string_to_metric_families(text)}
    not_served = {"DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_COUNT"}
    assert real.keys() - ours.keys() == not_served
    assert {name for names in NOT_SERVED for name in names} >= not_served
    for name in real.keys() & ours.keys():
        theirs, own = real[name], ours[name]
        assert (own.type == theirs.type) == (name != "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), name
        labels = list(own.samples[0].labels)
        assert [label for label in theirs.samples[0].labels if label in labels] == list(FORMS)
        assert set(labels) - {"pci_bus_id"} == set(FORMS)
        for sample in (own.samples[0], theirs.samples[0]):
            assert all(re.fullmatch(form, sample.labels[label]) for label, form in FORMS.items())


def amount(terms: tuple[FormulaTerm, ...], owner: Entity, readings: dict[Reading, int]) -> Fraction:
    """Return a sum of the table, computed directly."""
    total = Fraction(0)
    for term in terms:
        first = (ADDRESS,) if term.metric.about is GPU_ADDRESS else owner.key
        wanted = (*first, *term.part)
        for (metric, key), reading in readings.items():
            fits = len(key) == len(wanted) and all(map(matches, wanted, key))
            if metric is term.metric and fits:
                weight = term.weights[key[-1]] if term.weights else term.weight
                total += reading * metric.scale * weight
    return total


def matches(wanted: str, part: str) -> bool:
    return wanted in {EACH, part}


@pytest.mark.parametrize(
    ("found", "owner"), [(OF_GPU, GPU_ENTITY), (OF_SLICE, SLICE)], ids=["gpu", "mig"]
)
@given(data=st.data())
def test_conversions_are_exact(found: list[Column], owner: Entity, data: st.DataObject) -> None:
    """An integer stays exact at any size; any other number is the nearest float."""
    stored = data.draw(st.lists(STORED, min_size=len(found), max_size=len(found)))
    readings = {
        (metric, entity.key): from_stored(value, counter=metric.kind is MetricKind.COUNTER)
        for (metric, entity), value in zip(found, stored, strict=True)
    }
    text = exposition_of(found, stored)
    values = dict(re.findall(r"^(\w+)\{.*\} (\S+)$", text, re.MULTILINE))
    for row in DCGM_METRICS:
        formula = row.gpu[0] if owner is GPU_ENTITY else row.mig
        if formula is None:
            continue
        value = amount(formula.terms, owner, readings) * row.measure.per_base_unit
        if formula.denominator:
            denominator = amount(formula.denominator, owner, readings)
            if not denominator:
                assert row.name not in values
                continue
            value /= denominator
        if value.denominator == 1:
            assert values.pop(row.name) == str(value.numerator), row.name
        else:
            assert float(values.pop(row.name)) == float(value), row.name
    assert values == {}
