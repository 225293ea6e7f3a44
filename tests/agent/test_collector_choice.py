"""Several collectors: the order for a node, failover without loss, and return to the first of the order."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given, strategies as st
from support.examples import fewer_examples

from railscope_agent.config import CollectorLink
from railscope_agent.shipping.collector_choice import (
    FIRST_RETRY_SECONDS,
    RETURN_SPREAD,
    CollectorChoice,
)
from railscope_agent.shipping.collector_link import CollectorLinkError
from railscope_agent.shipping.collector_order import collector_links, rendezvous_order
from railscope_agent.shipping.delivery_result import ChangeReason

URLS = [f"https://collector-{name}.example:9470" for name in "abcde"]


def urls_of(link: CollectorLink, node: str = "n1") -> list[str]:
    return [each.url for each in collector_links(link, node)]


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
        ({"order": "pod"}, "collector.pod is not set.*fix: set collector.pod, or collector.order"),
    ],
)
def test_collectors_that_cannot_work_are_rejected(changes: dict[str, object], problem: str) -> None:
    given: dict[str, object] = {"urls": ["http://b", "http://c"]} | changes
    with pytest.raises(CollectorLinkError) as raised:
        collector_links(CollectorLink(**given), "n1")  # type: ignore[arg-type] - as in a settings file
    for part in problem.split(".*"):
        assert part in str(raised.value)
    assert "secret" not in str(raised.value)


nodes = st.text("abcdefghij0123456789-", min_size=1, max_size=12)
url_lists = st.lists(st.sampled_from(URLS), unique=True, min_size=1)


@given(nodes, url_lists, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_that_of_the_list(
    node: str, urls: list[str], shuffling: random.Random
) -> None:
    shuffled = [url + "/" * shuffling.randint(0, 1) for url in urls]
    shuffling.shuffle(shuffled)
    order = [url.rstrip("/") for url in rendezvous_order(node, shuffled)]
    assert order == rendezvous_order(node, urls)
    assert sorted(order) == sorted(urls)


@given(nodes, st.lists(st.sampled_from(URLS), unique=True, min_size=2), st.data())
def test_without_a_collector_the_order_of_the_others_stays(
    node: str, urls: list[str], data: st.DataObject
) -> None:
    """So only the nodes of a removed collector get another one, each the next of its order."""
    removed = data.draw(st.sampled_from(urls))
    rest = [url for url in urls if url != removed]
    assert rendezvous_order(node, rest) == [
        url for url in rendezvous_order(node, urls) if url != removed
    ]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_collectors_have_equal_shares_of_the_nodes(count: int) -> None:
    """And the nodes of one that fails are shared by the others."""
    total, urls = 5000, URLS[:count]
    orders = [rendezvous_order(f"gpu-{number:04}", urls) for number in range(total)]
    for shares, expected in (
        (Counter(order[0] for order in orders), total / count),
        (Counter(order[1] for order in orders if order[0] == urls[0]), total / count / (count - 1)),
    ):
        for share in shares.values():
            assert abs(share - expected) < 4 * expected**0.5, "four standard deviations"


def test_the_order_is_that_of_the_documented_hash() -> None:
    link = CollectorLink(urls=URLS, pod="pod-7")
    for order, key in (("rendezvous", "n1"), ("pod", "pod-7")):
        digests = {hashlib.sha256(f"{key}\n{url}".encode()).hexdigest(): url for url in URLS}
        expected = [digests[digest] for digest in sorted(digests, reverse=True)]
        changed = CollectorLink(urls=link.urls, pod=link.pod, order=order)  # type: ignore[arg-type] - one of them
        assert urls_of(changed) == expected
    listed = CollectorLink(urls=URLS[::-1], order="listed")
    assert {tuple(urls_of(listed, node)) for node in ("n1", "n2")} == {tuple(URLS[::-1])}


class Behaviour(Enum):
    """Of a collector: its response, and the duration of an attempt."""

    ACCEPTS = (None, 0.01)
    FAILS = (ChangeReason.FAILURES, 0.01)
    DENIES = (ChangeReason.DENIED, 0.01)
    """Access to frames; it is ready nevertheless."""
    DRAINS = (ChangeReason.DRAINING, 0.01)
    HANGS = (ChangeReason.UNACKNOWLEDGED, 30.0)


PUSH_SECONDS, PROBE_SECONDS = 5.0, 30.0


@dataclass
class Simulation:
    """An agent that sends every few seconds."""

    count: int
    link: CollectorLink = field(default_factory=CollectorLink)
    seed: int = 0
    now: float = 0.0
    attempts: list[tuple[float, int]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    first_ready: float | None = None

    def __post_init__(self) -> None:
        self.choice = CollectorChoice(
            self.count,
            self.link,
            uniform=random.Random(self.seed).uniform,  # noqa: S311 - no secret
        )
        self.next_probe = 0.0

    def run(self, behaviours: list[Behaviour], seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._probe(behaviours[0])
            before = self.choice.position
            self.choice.begin_attempt(self.now)
            position = self.choice.position
            if position != before:
                assert position == 0
                assert self.first_ready is not None
                self.returns.append(self.now - self.first_ready)
            self.attempts.append((self.now, position))
            reason, duration = behaviours[position].value
            self.now += duration
            if reason is None:
                self.choice.record_response()
                assert self.choice.confirmed == position
                self.now += PUSH_SECONDS
            else:
                self.now += self.choice.record_failure(self.now, reason)

    def _probe(self, first: Behaviour) -> None:
        if self.choice.position == 0:
            self.first_ready = None
        elif self.now >= self.next_probe:
            self.next_probe = self.now + PROBE_SECONDS
            is_ready = first in {Behaviour.ACCEPTS, Behaviour.DENIES}
            if not is_ready:
                self.first_ready = None
            elif self.first_ready is None:
                self.first_ready = self.now
            self.choice.record_probe(self.now, is_ready=is_ready)


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
@given(outages, st.integers(0, 99))
def test_every_sequence_of_outages_ends_at_the_first_collector(
    phases: list[tuple[list[Behaviour], float]], seed: int
) -> None:
    count = len(phases[0][0])
    simulation = Simulation(count, seed=seed)
    for behaviours, seconds in phases:
        simulation.run(behaviours, seconds)
    link = simulation.link
    # Failed returns have delayed the next one, at most by the maximum factor.
    simulation.run([Behaviour.ACCEPTS] * count, 16 * link.return_seconds * RETURN_SPREAD + 120)
    assert (simulation.choice.position, simulation.choice.confirmed) == (0, 0)
    assert all(seconds >= link.return_seconds for seconds in simulation.returns)
    for first, last in zip(simulation.attempts, simulation.attempts[count:], strict=False):
        assert last[0] - first[0] >= FIRST_RETRY_SECONDS, "one attempt each, then a pause"


def test_agents_do_not_return_at_the_same_time() -> None:
    returned = []
    for seed in range(200):
        simulation = Simulation(2, seed=seed)
        simulation.run([Behaviour.FAILS, Behaviour.ACCEPTS], 60)
        simulation.run([Behaviour.ACCEPTS, Behaviour.ACCEPTS], 600)
        returned += simulation.returns
    assert len(returned) == 200
    thirds = Counter(int((seconds - 300) // 52) for seconds in returned)
    assert all(thirds[third] > 40 for third in range(3)), thirds
