"""Spans of samples: the result does not depend on the order, and any order is cheap."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from railscope_collector.evidence.node_intervals import SampleSpan, add_span, add_spans
from railscope_collector.metering.observation import GAP_NS

STEP_NS = GAP_NS // 2
spans = st.builds(
    lambda first, length, uncertainty, skew: SampleSpan(
        first * STEP_NS, (first + length) * STEP_NS, uncertainty, skew
    ),
    st.integers(0, 80),
    st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from([0, 0, 7]),
)


def joined(found: Sequence[SampleSpan]) -> list[SampleSpan]:
    """The plain rule: of one skew, what is at most a gap apart is one span."""
    left = sorted(found)
    result: list[SampleSpan] = []
    while left:
        one = left.pop(0)
        near = [o for o in left if o.skew_ns == one.skew_ns and o.first_ns <= one.last_ns + GAP_NS]
        if not near:
            result.append(one)
            continue
        left = [o for o in left if o is not near[0]]
        last_ns = max(one.last_ns, near[0].last_ns)
        certain = max(one.uncertainty_ns, near[0].uncertainty_ns)
        left = sorted([*left, SampleSpan(one.first_ns, last_ns, certain, one.skew_ns)])
    return sorted(result)


@given(st.lists(st.lists(spans, max_size=6), max_size=8))
def test_spans_are_joined_by_the_rule_in_whatever_order_they_come(parts: list[list[SampleSpan]]):
    found: list[SampleSpan] = []
    for part in parts:
        add_spans(found, sorted(part))
    assert found == joined([span for part in parts for span in part])


@given(st.lists(spans, min_size=1, max_size=8), spans)
def test_the_last_span_only_grew_where_that_is_reported(before: list[SampleSpan], new: SampleSpan):
    found: list[SampleSpan] = []
    add_spans(found, sorted(before))
    kept = [(span, list(span.__rich_repr__())) for span in found]
    if add_span(found, new):
        assert [span for span, _ in kept] == found, "no other objects"
        assert [list(span.__rich_repr__()) for span in found[:-1]] == [
            fields for _, fields in kept[:-1]
        ]


def test_spans_that_come_from_the_newest_to_the_oldest_are_not_visited_again_and_again():
    found: list[SampleSpan] = []
    for number in reversed(range(50_000)):
        add_span(found, SampleSpan(number * 2 * GAP_NS, number * 2 * GAP_NS))
    assert len(found) == 50_000, "with a visit of each span by each other this test takes an hour"
