"""Samples that lie far apart: their memory is bounded by GPU and by node."""

from __future__ import annotations

from collections import Counter

from core_queries import new_problems
from hypothesis import given, strategies as st
from reports import HOUR
from stories import fleet_histories
from support.checkpoints import checkpoint_of, resume_from
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    Envelopes,
    NodeReporter,
    accept,
    at,
    core_in,
    gpus_of,
    known_of,
)

from railscope_collector.evidence.batch_facts import (
    MAX_OF_A_GPU,
    MAX_OF_A_NODE,
    SpanCounts,
    max_new_spans,
)
from railscope_collector.evidence.evidence_book import EvidenceBook
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import SampleSpan, add_spans
from railscope_collector.evidence.review_rules import ReviewDecisions, ReviewKind, ReviewSubject
from railscope_collector.metering.observation import GAP_NS
from railscope_collector.state.collector_state import CollectorState

APART = 31


def scattered(names: list[str], count: int, node: str = "n1", first: int = 0) -> Envelopes:
    """Samples of GPUs, each too far from the next to be one span with it."""
    reporter = NodeReporter(node, f"{node}-boot")
    seconds = range(first, first + count * APART, APART)
    return reporter.envelopes_of(gpus_of(*names), seconds, each=100)


def held(book: EvidenceBook, gpu: str, node: str = "n1") -> int:
    """Spans in memory of one GPU in a node."""
    found = book.gpus[gpu].presences.values()
    return sum(len(one.spans) for one in found if one.node == node)


def test_spans_of_a_gpu_are_bounded_counted_and_reported(core: CollectorState):
    problems = new_problems(core)
    accept(core, scattered(["GPU-0"], MAX_OF_A_GPU + 500))
    book = core.evidence
    assert MAX_OF_A_GPU - 100 < held(book, "GPU-0") <= MAX_OF_A_GPU
    assert held(book, "GPU-0") + book.excess_spans == MAX_OF_A_GPU + 500
    assert Counter(problem.kind for problem in problems) == {"too_many_spans": 1}
    stored = [
        kept.interval.gpus["GPU-0"] for kept in book.intervals.by_key.values() if kept.interval.gpus
    ]
    assert sum(len(one.spans) for one in stored) <= MAX_OF_A_GPU + len(stored)
    assert core.counts.frames == MAX_OF_A_GPU + 500, "they are acknowledged all the same"


def test_another_node_with_the_same_gpu_has_its_own_bound(core: CollectorState):
    accept(core, scattered(["GPU-0"], MAX_OF_A_GPU + 100, "hostile"))
    node = NodeReporter("n1")
    start = (MAX_OF_A_GPU + 200) * APART
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(start, start + HOUR, 30)))
    assert held(core.evidence, "GPU-0", "n1") == 1
    accepted = AdministratorInputs(
        decisions=ReviewDecisions({ReviewSubject(ReviewKind.GPU, "n1", "GPU-0"): True})
    )
    last = max(s.last_ns for s in known_of(core, "GPU-0", accepted).evidence.sample_spans)
    assert last == at(start + HOUR - 30)


def test_a_span_that_goes_on_grows_at_the_bound(core: CollectorState):
    accept(core, scattered(["GPU-0"], MAX_OF_A_GPU - 1))
    node = NodeReporter("n1", "second", "second")
    start = MAX_OF_A_GPU * APART
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(start, start + 6 * HOUR, 30)))
    assert held(core.evidence, "GPU-0") == MAX_OF_A_GPU
    assert core.evidence.excess_spans == 0


def test_a_node_has_a_bound_over_all_of_its_gpus():
    counts = SpanCounts()
    gpus = MAX_OF_A_NODE // MAX_OF_A_GPU
    for number in range(gpus):
        name = f"GPU-{number}"
        assert not counts.limit_exceeded("n1", name, MAX_OF_A_GPU)
        counts.add("n1", name, MAX_OF_A_GPU)
        assert "of one GPU" in counts.limit_exceeded("n1", name, 1)
    assert "of one node" in counts.limit_exceeded("n1", "GPU-99", 1)
    assert not counts.limit_exceeded("n1", "GPU-99", 0), "what only goes on is kept"
    assert not counts.limit_exceeded("n2", "GPU-0", MAX_OF_A_GPU)
    counts.count("GPU-0", [], {})
    assert not counts.limit_exceeded("n1", "GPU-99", MAX_OF_A_GPU)


def test_a_restart_has_the_same_bound(core: CollectorState, tmp_path):
    envelopes = scattered(["GPU-0"], MAX_OF_A_GPU + 500)
    cut = len(envelopes) - 7
    accept(core, envelopes[:cut])
    again = core_in(tmp_path / "schemas")
    resume_from(again, checkpoint_of(core))
    assert again.evidence.spans.by_node == core.evidence.spans.by_node
    for one in (core, again):
        accept(one, envelopes[cut:])
    assert held(again.evidence, "GPU-0") == held(core.evidence, "GPU-0")
    assert known_of(again, "GPU-0").evidence == known_of(core, "GPU-0").evidence


async def test_time_in_the_ledger_frees_its_place(site: FinalizingCollector):
    accept(site.core, scattered(["GPU-0"], DAY_SECONDS // APART))
    assert site.core.evidence.spans.by_node["n1"] == DAY_SECONDS // APART
    await site.round(DAY_SECONDS + 2 * HOUR, everything=True)
    assert site.core.evidence.spans.by_node["n1"] <= 2
    assert held(site.core.evidence, "GPU-0") <= 2


@fewer_examples(30)
@given(fleet_histories(), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_counts_are_those_of_the_memory(tmp_path_factory, story, sizes):
    core = core_in(tmp_path_factory.mktemp("schemas"))
    accept(core, story.envelopes(sizes))
    book = core.evidence
    nodes = {p.node for memory in book.gpus.values() for p in memory.presences.values()}
    for node in nodes:
        assert book.spans.by_node[node] == sum(held(book, gpu, node) for gpu in book.gpus)
    assert book.excess_spans == 0


spans = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 20), st.sampled_from([0, 3])),
    min_size=1,
    max_size=9,
)


def ordered(found: list[tuple[int, int, int]]) -> list[SampleSpan]:
    """Spans of one skew in order, further than a gap apart."""
    made: list[SampleSpan] = []
    skew = found[0][2]
    for first, length, _ in sorted(found):
        span = SampleSpan(first * GAP_NS // 7, (first + length) * GAP_NS // 7, 0, skew)
        if not made or span.first_ns > made[-1].last_ns + GAP_NS:
            made.append(span)
    return made


@given(spans, spans)
def test_no_more_spans_are_added_than_were_announced(known, more):
    before, new = ordered(known), ordered(more)
    count, announced = len(before), max_new_spans(before, new)
    add_spans(before, new)
    assert len(before) - count <= announced
    assert max_new_spans((), new) == len(new)
