"""Agents and collectors of one database: what leaves a spool is in the database, whichever collectors are lost."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st
from sqlalchemy import select
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import NodeReporter, claim_ended, claim_started, gpus_of

from railscope.catalog.tenancy import CLAIM_END_EVENT, CLAIM_START_EVENT
from railscope.frame import Frame
from railscope_agent.shipping.delivery_result import EvidenceReceipt
from railscope_agent.shipping.spool import Spool
from railscope_collector.evidence import fact_tables
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

GPU = gpus_of("GPU-0")
NODE = "n1"
HEAD = 8
"""Bytes before the body in a file of the spool."""


@dataclass
class Site:
    """An agent with its spool, and the collectors that it may send to."""

    directory: Path
    url: str
    node: NodeReporter = field(default_factory=NodeReporter)
    now: int = 0
    collectors: list[FinalizingCollector] = field(default_factory=list)
    in_use: int = 0
    envelopes: dict[bytes, list[Frame]] = field(default_factory=dict)
    """Frames by body of the envelope in the spool."""
    removed: int = 0

    def __post_init__(self) -> None:
        self.spool = Spool(self.directory / "spool", 1 << 20)
        self.ledger = Ledger.open(self.url, metadata)
        for number in range(2):
            self.collectors.append(self._start(number))

    def _start(self, number: int) -> FinalizingCollector:
        """Start a collector with an empty disk."""
        directory = self.directory / f"collector-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        found = FinalizingCollector(directory, self.url)
        found.begin_positions()
        return found

    def close(self) -> None:
        """Stop everything."""
        self.ledger.close()
        for each in self.collectors:
            each.finalizer.close()

    def produce(self, seconds: int, claims: bool) -> None:  # noqa: FBT001 - drawn
        """Make an envelope of the frames of some time."""
        first, self.now = self.now + 30, self.now + seconds
        events = {}
        if claims:
            started = claim_started("GPU-0", f"job-{first}", first)
            ended = claim_ended("GPU-0", f"job-{first}", self.now)
            events = {first: [started], self.now: [ended]}
        frames = self.node.frames(GPU, range(first, self.now + 1, 30), events=events)
        body = b"%d" % len(self.envelopes)
        self.envelopes[body] = frames
        self.spool.put(body, len(frames))

    def send(self, *, is_answered: bool = True) -> bool:
        """Send the oldest envelope that waits; false without one."""
        oldest = self.spool.oldest()
        if oldest is None:
            return False
        collector = self.collectors[self.in_use]
        collector.receive([self.node.record(self.envelopes[oldest[1]], self.now)])
        answer = collector.reader.acknowledge(NODE)
        if is_answered:
            receipt = msgspec.convert(answer, EvidenceReceipt)
            self.spool.receive(oldest[0], receipt, self.now)
        return True

    def fail(self) -> None:
        """Send, and lose the response."""
        self.send(is_answered=False)

    def lose(self, number: int) -> None:
        """Lose a collector with its disk."""
        self.collectors[number].finalizer.close()
        self.collectors[number] = self._start(number)

    def restart(self, number: int) -> None:
        """Restart a collector with its disk."""
        found = self.collectors[number]
        found.restart(found.checkpoint())
        found.begin_positions()

    def restart_agent(self) -> None:
        """Restart the agent: it has only its disk."""
        self.spool = Spool(self.directory / "spool", 1 << 20)

    def use(self, number: int) -> None:
        """Send to another collector from now on."""
        self.in_use = number

    def store(self, number: int, *, everything: bool = False) -> None:
        """Store what is ready in one collector."""
        asyncio.run(self.collectors[number].round(self.now, everything=everything))

    def check(self) -> None:
        """Everything that the spool does not have is in the database."""
        left = {file.read_bytes()[HEAD:] for file in (self.directory / "spool").iterdir()}
        frames = [frame for body in self.envelopes.keys() - left for frame in self.envelopes[body]]
        if len(frames) == self.removed:
            return
        self.removed = len(frames)
        quarantine = EvidenceQuarantine()
        with self.ledger.database.transaction() as connection:
            quarters = fact_tables.quarters.c
            rows = connection.execute(select(quarters.quarter, quarters.content)).all()
            starts = connection.execute(select(fact_tables.claims.c.claim)).scalars()
            ends = connection.execute(select(fact_tables.claim_ends.c.claim)).scalars()
            found = {CLAIM_START_EVENT: set(starts), CLAIM_END_EVENT: set(ends)}
        stored = [interval for row in rows if (interval := quarantine.interval(*row))]
        assert not quarantine.rows
        series = [each for interval in stored for each in interval.series.values()]
        times = {reading.boot_ns for each in series for reading in each.cells.values()}
        assert {frame.timestamp.boot_ns for frame in frames} <= times
        for event in [event for frame in frames for event in frame.events]:
            assert event.entity.key[1] in found[event.event_class]


produced = st.tuples(st.just(Site.produce), st.sampled_from([30, 300, 900, 1800]), st.booleans())
of_collectors = st.tuples(
    st.sampled_from([Site.store, Site.lose, Site.restart, Site.use]), st.integers(0, 1)
)
of_agent = st.tuples(st.sampled_from([Site.send, Site.fail, Site.restart_agent]))


@fewer_examples(100)
@given(st.lists(produced | of_agent | of_agent | of_collectors, min_size=5, max_size=25))
def test_nothing_leaves_the_spool_before_the_database_has_it(
    tmp_path_factory: pytest.TempPathFactory, new_ledger_file: Path, steps: list[tuple]
):
    directory = tmp_path_factory.mktemp("site")
    shutil.copyfile(new_ledger_file, directory / "ledger.db")
    site = Site(directory, f"sqlite:///{directory / 'ledger.db'}")
    try:
        for step, *arguments in steps:
            step(site, *arguments)
            site.check()
        while site.send():
            site.check()
        site.store(site.in_use, everything=True)
        site.produce(30, False)  # noqa: FBT003 - as above
        while site.send():
            site.check()
        assert len(list((directory / "spool").iterdir())) <= 1
        assert site.removed >= sum(map(len, site.envelopes.values())) - 1
    finally:
        site.close()
