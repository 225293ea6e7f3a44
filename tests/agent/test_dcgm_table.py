"""The table of dcgm-exporter's names matches the catalog, the sources, real output and arithmetic."""

from __future__ import annotations

import re
import shutil
import subprocess
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
from support.reading import ORIGIN
from support.shared import capture_path

from railscope.catalog import METRICS, MetricKind
from railscope.catalog.declare import Metric
from railscope.catalog.entities import GPU, GPU_ADDRESS, MIG
from railscope.exposition import TextFormat
from railscope.frame import Column, Entity, Frame, NodeTimestamp, Schema
from railscope.reading import from_stored
from railscope_agent.endpoint.dcgm import DcgmExposition
from railscope_agent.endpoint.dcgm_table import DCGM_METRICS, EACH, FormulaTerm

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
Reading = tuple[Metric, tuple[str, ...]]


# The catalog and the sources -------------------------------------------------------------------


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


def exposition_of(
    found: list[Column], stored: list[int], form: TextFormat = TextFormat.PROMETHEUS
) -> str:
    """Return the metrics text of columns with these integers, as the sources store them."""
    order = Schema.ordered(found)
    schema = Schema("test", tuple(found[position] for position in order), (GPU_ENTITY,))
    values = array("q", [stored[position] for position in order])
    frame = Frame(ORIGIN, schema, 1, NodeTimestamp(1, 1), values)
    return DcgmExposition("node-1").render([frame], form)


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


def test_each_name_has_its_help_and_type_and_openmetrics_keeps_it() -> None:
    """A counter must end in _total there; one that does not has no type rather than another name."""
    ones = [1] * len(OF_GPU)
    plain = exposition_of(OF_GPU, ones)
    openmetrics = exposition_of(OF_GPU, ones, TextFormat.OPENMETRICS)
    assert openmetrics.replace(" unknown\n", " counter\n") == plain + "# EOF\n"
    described = {f.name: (f.type, f.documentation) for f in text_string_to_metric_families(plain)}
    assert (
        described.items()
        <= {row.name: (str(row.kind), row.sentence) for row in DCGM_METRICS}.items()
    )


def test_promtool_finds_nothing_but_names_that_are_not_ours_to_choose() -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", "check", "metrics"],
        input=exposition_of(OF_GPU, [1] * len(OF_GPU)),
        capture_output=True,
        text=True,
        check=False,
    )
    about_names = ("counter metrics should have", "should not include type", "not 'camelCase'")
    found = (outcome.stdout + outcome.stderr).splitlines()
    assert [line for line in found if not any(text in line for text in about_names)] == []
