"""Several collectors: as listed, and failover without loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given, strategies as st
from support.examples import fewer_examples

from railscope_agent.config import CollectorLink
from railscope_agent.shipping.collector_choice import FIRST_RETRY_SECONDS, CollectorChoice
from railscope_agent.shipping.collector_link import CollectorLinkError, collector_links
from railscope_agent.shipping.delivery_result import ChangeReason

URLS = [f"https://collector-{name}.example:9470" for name in "abcde"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": "http://a"}, "both set.*fix: move the URL to collector.urls, and remove"),
        ({"urls": ["http://a", "ftp://b"]}, "invalid collector.urls 'ftp://b': expected http://"),
        ({"urls": ["http://a", "http://"]}, "invalid collector.urls 'http://': expected http://"),
        (
            {"urls": ["http://a:x"]},
            "invalid collector.urls: URL 1: .*'x': expected http://HOST:PORT",
        ),
        ({"urls": ["http://a", "http://[::1"]}, "invalid collector.urls: URL 2: Invalid IPv6 URL"),
        ({"urls": ["http://me:secret@[::1"]}, "invalid collector.urls: URL 1: "),
        ({"urls": ["http://me:secret@a"]}, "expected a URL without user and password"),
        ({"urls": ["http://a", "http://A:80/"]}, "'http://A:80/' is the same as 'http://a'"),
        (
            {"urls": [], "token_file": "/x"},
            'collector.token_file is set without collector.url.*fix: collector.url = "https://',
        ),
    ],
)
def test_collectors_that_cannot_work_are_rejected(changes: dict[str, object], problem: str) -> None:
    given: dict[str, object] = {"urls": ["http://b", "http://c"]} | changes
    with pytest.raises(CollectorLinkError) as raised:
        collector_links(CollectorLink(**given))  # type: ignore[arg-type] - as in a settings file
    for part in problem.split(".*"):
        assert part in str(raised.value)
    assert "secret" not in str(raised.value)


def test_collectors_are_tried_as_listed() -> None:
    links = collector_links(CollectorLink(urls=URLS, timeout_seconds=40, failover_seconds=30))
    assert [each.url for each in links] == URLS
    assert {each.timeout_seconds for each in links} == {30}, "one that hangs delays no other one"


class Behaviour(Enum):
    """Of a collector: its response, and the duration of an attempt."""

    ACCEPTS = (None, 0.01)
    FAILS = (ChangeReason.FAILURES, 0.01)
    DENIES = (ChangeReason.DENIED, 0.01)
    """Access to frames; it is ready nevertheless."""
    DRAINS = (ChangeReason.DRAINING, 0.01)
    HANGS = (ChangeReason.UNACKNOWLEDGED, 30.0)


PUSH_SECONDS = 5.0


@dataclass
class Simulation:
    """An agent that sends every few seconds."""

    count: int
    now: float = 0.0
    attempts: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.choice = CollectorChoice(self.count, CollectorLink())

    def run(self, behaviours: list[Behaviour], seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.choice.begin_attempt(self.now)
            position = self.choice.position
            self.attempts.append((self.now, position))
            reason, duration = behaviours[position].value
            self.now += duration
            if reason is None:
                self.choice.record_response()
                assert self.choice.confirmed == position
                self.now += PUSH_SECONDS
            else:
                self.now += self.choice.record_failure(self.now, reason)


outages = st.integers(1, 4).flatmap(
    lambda count: st.lists(
        st.tuples(
            st.lists(st.sampled_from(Behaviour), min_size=count, max_size=count),
            st.floats(1, 2000),
        ),
        min_size=1,
        max_size=6,
    )
)


@fewer_examples(60)
@given(outages, st.data())
def test_after_every_sequence_of_outages_the_active_collector_is_found(
    phases: list[tuple[list[Behaviour], float]], data: st.DataObject
) -> None:
    count = len(phases[0][0])
    simulation = Simulation(count)
    for behaviours, seconds in phases:
        simulation.run(behaviours, seconds)
    active = data.draw(st.integers(0, count - 1))
    group = [Behaviour.DRAINS] * count
    group[active] = Behaviour.ACCEPTS
    # The longest pause, then a round; a collector that hung holds one attempt.
    simulation.run(group, 2 * CollectorLink().max_retry_seconds + 60)
    assert (simulation.choice.position, simulation.choice.confirmed) == (active, active)
    for first, last in zip(simulation.attempts, simulation.attempts[count:], strict=False):
        assert last[0] - first[0] >= FIRST_RETRY_SECONDS, "one attempt each, then a pause"


def test_a_waiting_collector_is_left_without_a_pause() -> None:
    simulation = Simulation(3)
    simulation.run([Behaviour.DRAINS, Behaviour.DRAINS, Behaviour.ACCEPTS], 1)
    assert [position for _, position in simulation.attempts] == [0, 1, 2]
    assert simulation.attempts[2][0] < 0.1
