"""Properties of every declaration, and of everything derived from them."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from railscope.catalog import EVENTS, INFO, KINDS, METRICS, SUBJECTS, rollups
from railscope.catalog.account import BY_JOB, STRAGGLER_MEASURES
from railscope.catalog.declare import (
    ALL_ONES,
    BLANKS,
    BUCKET,
    WHOLE,
    EntityKind,
    Metric,
    MetricKind,
    MetricUnit,
    Rollup,
)
from railscope.catalog.entities import GPU, NODE
from railscope.catalog.rollup import ON_A_RAIL, SCOPES, part_labels, scopes_of

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
RESERVED_LABELS = {"le", "quantile", "job", "instance"}
RESERVED_ENDINGS = ("_bucket", "_sum", "_count", "_created", "_gsum", "_gcount")
DECLARED = list(METRICS.values())
DERIVED = list(rollups().values())
STATES_AND_FACTS = {MetricKind.STATE, MetricKind.INFO}
NEVER_SUMMED = {MetricUnit.RATIO, MetricUnit.CELSIUS, MetricUnit.HERTZ}


def test_metrics_keep_the_naming_rules() -> None:
    names = [*METRICS, *rollups()]
    assert [name for name in names if not NAME.fullmatch(name)] == []
    assert [name for name in names if name.endswith(RESERVED_ENDINGS)] == []
    assert [
        m.name for m in DECLARED if (m.kind is MetricKind.INFO) != m.name.endswith("_info")
    ] == []


def test_metrics_are_about_entities_of_the_catalog() -> None:
    assert [m.name for m in DECLARED if KINDS.get(m.about.name) is not m.about] == []


def test_scales_and_widths_are_possible() -> None:
    assert [m.name for m in DECLARED if m.scale <= 0] == []
    assert [m.name for m in DECLARED if m.wraps_at_bits not in {4, 8, 16, 32, 64}] == []
    assert [m.name for m in DECLARED if m.saturates and m.kind is not MetricKind.COUNTER] == []


def test_sentinels_of_drivers_are_no_values() -> None:
    """All bits of a type, and blank values, unless others wrote the number; a narrow counter may have all bits set."""
    gauges = [m for m in DECLARED if m.kind is MetricKind.GAUGE and m.valid != WHOLE]
    sentinels = [*ALL_ONES, *(edge for blank in BLANKS for edge in (blank[0], blank[-1]))]
    assert [(m.name, s) for m in gauges for s in sentinels if m.accepts(s)] == []
    counters = [m for m in DECLARED if m.kind is MetricKind.COUNTER and not m.saturates]
    wide = [m for m in counters if m.wraps_at_bits == 64]
    marks = [*ALL_ONES, BLANKS[1][0]]
    assert [(m.name, s) for m in wide for s in marks if m.accepts(s)] == []
    assert all(m.accepts(BLANKS[0][0]) for m in counters)
    counts = [m for m in gauges if not m.unit and not m.valid]
    assert [m.name for m in counts if m.accepts(-1)] == []
    assert all(m.accepts(ALL_ONES[0]) for m in counters if m.wraps_at_bits == 32)
    assert all(m.accepts(0) for m in DECLARED)
    # Compared as signed numbers of 64 bits (of counters, as unsigned ones).
    assert all(m.valid_steps[0] >= -(1 << 63) and m.valid_steps[-1] < 1 << 63 for m in gauges)
    ratios = [m for m in gauges if m.unit is MetricUnit.RATIO and m.valid is None]
    assert [m.name for m in ratios if not m.accepts(int(1 / m.scale))] == []
    assert [m.name for m in ratios if m.accepts(int(1 / m.scale) + 1)] == []


def test_metrics_have_a_source_and_counters_a_reset() -> None:
    assert [m.name for m in DECLARED if not m.origin] == []
    assert [m.name for m in DECLARED if m.kind is MetricKind.COUNTER and not m.resets] == []


def test_what_does_not_add_up_is_not_added_up() -> None:
    assert [m.name for m in DECLARED if m.kind in STATES_AND_FACTS and m.rollups] == []
    summed = [m for m in DECLARED if Rollup.SUM in m.rollups and m.kind is MetricKind.GAUGE]
    assert [m.name for m in summed if m.unit in NEVER_SUMMED] == []


def test_states_have_names_of_their_own_and_a_label_to_stand_in() -> None:
    for metric in DECLARED:
        if metric.kind is MetricKind.STATE:
            assert len(set(metric.states.values())) == len(metric.states), metric.name
            assert "state" not in metric.about.labels, metric.name


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_labels_and_facts_of_a_kind_do_not_collide(kind: EntityKind) -> None:
    terms = (*kind.labels, *kind.facts)
    assert len(set(terms)) == len(terms), "a fact would overwrite a label"
    assert all(NAME.fullmatch(term) for term in terms)
    own = kind.labels[:-1] if kind.labels[-1:] == (BUCKET,) else kind.labels
    assert not {*own, *kind.facts} & RESERVED_LABELS


def test_facts_have_an_info_metric_to_live_in() -> None:
    assert [name for name, kind in KINDS.items() if kind.facts and name not in INFO] == []


def test_every_kind_is_found_by_its_name() -> None:
    assert all(kind.name == name for name, kind in KINDS.items())
    assert len({id(kind) for kind in KINDS.values()}) == len(KINDS)


def test_one_info_metric_a_kind() -> None:
    info = [metric for metric in DECLARED if metric.kind is MetricKind.INFO]
    assert len({metric.about.name for metric in info}) == len(info)
    assert all(metric.about.facts for metric in info)


def test_openmetrics_families_do_not_clash() -> None:
    """A family is called without `_total` and `_info`; its samples with them."""
    suffixes = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}
    every = [*DECLARED, *(derived.metric for derived in DERIVED)]
    families = [metric.name.removesuffix(suffixes.get(metric.kind, "")) for metric in every]
    names = [*families, *(metric.name for metric in every if metric.kind in suffixes)]
    assert len(set(names)) == len(names)


def rollups_of(source: Metric, scope: str) -> tuple[Rollup, ...]:
    return BY_JOB.get(source, ()) if scope == "job" else source.rollups


def test_rollups_are_gauges_of_their_scope() -> None:
    for name, derived in rollups().items():
        assert name not in METRICS
        assert name.startswith(f"railscope_{derived.scope}_{derived.rollup}_")
        assert derived.metric.kind is MetricKind.GAUGE
        assert derived.rollup in rollups_of(derived.source, derived.scope)


def test_rollups_keep_the_labels_of_parts() -> None:
    for derived in DERIVED:
        scope, parts = SCOPES[derived.scope].labels, part_labels(derived.source.about)
        assert derived.metric.about.labels == (*scope, *parts), derived.metric.name


def test_every_rollup_has_a_name_of_its_own() -> None:
    declared = [len(m.rollups) * len(scopes_of(m)) for m in DECLARED]
    of_jobs = [len(chosen) for chosen in BY_JOB.values()]
    assert len(rollups()) == sum(declared) + sum(of_jobs)


def test_gpus_are_rolled_up_by_rail_in_what_differs_by_place() -> None:
    by_rail = {one.source.about.outermost for one in DERIVED if one.scope == "rail"}
    assert by_rail == {*ON_A_RAIL}
    for one in DERIVED:
        if one.scope == "rail" and one.source.about.outermost is GPU:
            assert one.source.about is GPU
            assert one.source.unit in {MetricUnit.RATIO, MetricUnit.WATTS, MetricUnit.CELSIUS}


def test_what_rolls_up_over_jobs_is_of_gpus_and_ports_and_means_something() -> None:
    for source, chosen in BY_JOB.items():
        assert source.about.outermost in ON_A_RAIL
        if source.kind is MetricKind.GAUGE and source.unit in NEVER_SUMMED:
            assert Rollup.SUM not in chosen, source.name
    for measure in STRAGGLER_MEASURES.values():
        assert measure.metric.about.outermost in ON_A_RAIL
        assert len(measure.part) == len(part_labels(measure.metric.about))


def test_event_classes_are_complete() -> None:
    for event in EVENTS.values():
        assert event.severity in {"info", "warning", "error"}
        assert event.help.endswith(".")
        assert KINDS[event.about.name] is event.about
        assert len(set(event.facts)) == len(event.facts)


def test_every_subject_declares_something() -> None:
    for name, module in SUBJECTS.items():
        assert any(isinstance(value, Metric) for value in vars(module).values()), name


def declare(name: str, **changes: object) -> Metric:
    given: dict[str, object] = {
        "kind": MetricKind.GAUGE,
        "about": NODE,
        "help": "A.",
        "origin": "test",
    }
    return Metric(name, **(given | changes))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("power_watts", {}, "must start with railscope_"),
        ("railscope_reads", {"kind": MetricKind.COUNTER}, "end in _total"),
        ("railscope_reads_total", {}, "end in _total"),
        ("railscope_power", {"unit": MetricUnit.WATTS}, "end in its unit watts"),
        ("railscope_power", {"help": "Power"}, "full stop"),
        ("railscope_state", {"kind": MetricKind.STATE}, "name their states"),
        ("railscope_state", {"states": {0: "down"}}, "name their states"),
    ],
)
def test_a_wrong_declaration_is_rejected(
    name: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        declare(name, **changes)


def test_a_part_must_begin_with_the_labels_of_its_whole() -> None:
    with pytest.raises(ValueError, match="must begin with"):
        EntityKind("gpu_thing", ("thing",), part_of=GPU)


def test_the_stem_is_what_is_measured() -> None:
    def stem(name: str, **changes: object) -> str:
        return declare(f"railscope_{name}", **changes).stem

    assert (
        stem("gpu_energy_joules_total", kind=MetricKind.COUNTER, unit=MetricUnit.JOULES)
        == "gpu_energy"
    )
    assert stem("rdma_ack_timeouts_total", kind=MetricKind.COUNTER) == "rdma_ack_timeouts"
    assert stem("cpus", scale=Fraction(1)) == "cpus"
