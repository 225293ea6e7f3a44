"""Collectors with a shared database: an envelope stays in the spool until its evidence is stored."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from structlog.testing import capture_logs
from support.collector import ScriptedCollector, frames_in, take
from support.disk import small_file_system
from support.reading import ORIGIN
from support.shipping import RunningShipper, link_to, run_shipper
from test_collector_choice import DRAINING, pair, return_to_first

from railscope.timestamps import SECOND_NS
from railscope.wire import MAX_RECEIPT_CHARACTERS, RECEIPT_HEADER, DeliveredRun, Envelope
from railscope_agent.shipping.collector_logs import (
    FIRST_PAUSE_NS,
    LOG_EXPIRY_NS,
    MAX_LOGS,
    MAX_PAUSE_NS,
    LogReceipts,
    ReceivedEnvelope,
    RespondingLogs,
)


@dataclass
class StoringCollector(ScriptedCollector):
    """Acknowledges with positions; `stored` is moved by the test."""

    log: str = "a"
    position: int = 0
    stored: int = 0
    is_full: bool = False
    """True if it accepts no new frames."""
    receipt: str = ""
    delivered: list[DeliveredRun] = field(default_factory=list)
    """Frames of other collectors, as stated by the agent."""

    async def take(
        self, _: ScriptedCollector, request: web.Request, envelope: Envelope
    ) -> web.Response:
        """Take as the collector does, and add the position to the answer."""
        if self.is_full and not set(frames_in(envelope)) <= set(self.taken):
            return web.json_response({}, status=503)
        answer = await take(self, request, envelope)
        if answer.status != 200:
            return answer
        self.position += 1
        self.delivered += envelope.delivered
        assert isinstance(answer.body, bytes)
        fields = {"log": self.log, "position": self.position, "stored": self.stored}
        if self.receipt:
            fields["receipt"] = f"{self.receipt}-{self.position}"
        return web.json_response(msgspec.json.decode(answer.body) | fields)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if not self.script:
            self.script.append(self.take)
        return await super().handle(request)

    def lose(self, log: str) -> None:
        """Lose the disk: another log, and nothing was received."""
        self.log, self.position, self.stored = log, 0, 0
        self.taken.clear()


def spooled(directory: Path) -> int:
    return len([file for file in (directory / "spool").iterdir() if file.suffix != ".partial"])


def unstored(run: RunningShipper) -> tuple[int, int]:
    """Number of envelopes that wait to be received, and to be stored."""
    return run.stats.spool_envelopes, run.stats.unstored_envelopes


async def send(run: RunningShipper, count: int) -> None:
    """Send a number of envelopes, one after the other."""
    for _ in range(count):
        await run.flush()
        await run.shipped(len(run.sent))
        await run.shipper.wait_until_sent()


async def test_an_envelope_stays_until_its_evidence_is_stored(tmp_path: Path) -> None:
    async with (
        StoringCollector().serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        assert isinstance(collector, StoringCollector)
        await send(run, 3)
        assert unstored(run) == (0, 3)
        assert run.stats.unstored_bytes > 0
        assert run.stats.spool_bytes == 0
        assert run.stats.unstored_since_ns == run.clock.now().boot_ns
        assert spooled(tmp_path) == 3
        received = collector.position
        run.clock.advance(100)
        await run.clock.asleep(1)
        collector.stored = received - 1
        await send(run, 1)
        assert unstored(run) == (0, 2)
        collector.stored = received + 1
        await send(run, 1)
        assert unstored(run) == (0, 1), "all but the newest"
        assert run.stats.unstored_since_ns == run.clock.now().boot_ns
        assert len(collector.duplicates) == 0
        assert run.stats.shipped_frames == len(run.sent) == 5


async def test_a_collector_that_lost_its_disk_gets_everything_again_in_order(
    tmp_path: Path,
) -> None:
    async with (
        StoringCollector().serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        assert isinstance(collector, StoringCollector)
        await send(run, 4)
        collector.lose("b")
        await run.flush()
        await run.shipped(5)
        await run.shipper.wait_until_sent()
        assert collector.taken == [run.sent[4], *run.sent[:4]]
        assert unstored(run) == (0, 5)
        assert run.stats.shipped_frames == 5, "each counts once"
        collector.stored = collector.position
        await send(run, 1)
        assert unstored(run) == (0, 1)


async def test_an_envelope_that_is_sent_again_has_its_first_receipt(tmp_path: Path) -> None:
    async with (
        StoringCollector(receipt="one").serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        assert isinstance(collector, StoringCollector)
        await send(run, 2)
        assert not any(RECEIPT_HEADER in request.headers for request in collector.requests)
        issued = [f"one-{collector.position - 1}", f"one-{collector.position}"]
        for log in ("b", "c"):
            collector.lose(log)
            collector.receipt = log
            count = len(collector.requests)
            await send(run, 1)
            receipts = [r.headers.get(RECEIPT_HEADER) for r in collector.requests[count:]]
            assert [each for each in receipts if each][:2] == issued


@pytest.mark.parametrize("receipt", ["a\n", "\N{DEGREE SIGN}", "a" * MAX_RECEIPT_CHARACTERS])
async def test_an_invalid_receipt_is_a_failed_attempt(tmp_path: Path, receipt: str) -> None:
    async with (
        StoringCollector(receipt=receipt).serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        await run.flush()
        await run.failed()
        assert unstored(run) == (1, 0)


async def test_frames_that_another_collector_stored_are_stated_and_the_others_sent_again(
    tmp_path: Path,
) -> None:
    async with StoringCollector().serving() as first, StoringCollector(log="b").serving() as second:
        assert isinstance(first, StoringCollector)
        assert isinstance(second, StoringCollector)
        link = pair(first, second)
        async with run_shipper(tmp_path, link) as run:
            await send(run, 2)
            first.script.append(web.json_response(DRAINING, status=503))
            first.is_ready = False
            await send(run, 1)
            assert (second.taken, second.delivered) == (run.sent, []), "nothing was stored"
            second.stored = second.position
            await send(run, 1)
            assert unstored(run) == (0, 1)
            first.is_ready = True
            await return_to_first(run)
            await send(run, 1)
        assert first.delivered == [DeliveredRun(ORIGIN.run, {"gpu": ((1, 3),)})]
        assert first.taken == [*run.sent[:2], *run.sent[3:]]
        requests = len(first.requests)
        async with run_shipper(tmp_path, link, replace(ORIGIN, run="next")) as restarted:
            await send(restarted, 1)
        assert len(first.requests) > requests
        assert first.delivered == 2 * first.delivered[:1], "also after a restart of the agent"


async def test_after_a_failure_a_new_collector_gets_everything_in_order(tmp_path: Path) -> None:
    """Its horizon of claims follows the newest frame."""
    collector = StoringCollector()
    async with collector.serving():
        link = link_to(collector)
        async with run_shipper(tmp_path, link) as run:
            await send(run, 3)
            collector.script.append(web.json_response({}, status=503))
            await run.flush()
            await run.failed()
            collector.lose("b")
            run.retry()
            await run.shipped(4)
            await run.shipper.wait_until_sent()
            assert collector.taken == run.sent
            assert unstored(run) == (0, 4)
            collector.script.append(web.json_response({}, status=503))
            await run.flush()
            await run.failed()
            run.retry()
            await run.shipped(5)
            await run.shipper.wait_until_sent()
            assert not collector.duplicates, "of the same collector, nothing is repeated"


async def test_a_collector_that_rejects_only_new_frames_fails(tmp_path: Path) -> None:
    """Its other responses do not count as successes: with several collectors, the next one is used."""
    async with StoringCollector().serving() as full, StoringCollector(log="b").serving() as other:
        assert isinstance(full, StoringCollector)
        link = link_to(full, url="", order="listed", max_failures=2)
        urls = tuple(f"http://127.0.0.1:{each.port}" for each in (full, other))
        link = msgspec.structs.replace(link, urls=urls)
        async with run_shipper(tmp_path, link) as run:
            await send(run, 3)
            full.is_full = True
            await run.flush()
            await run.failed()
            run.retry()
            await run.shipped(4)
            await run.shipper.wait_until_sent()
            assert other.taken == run.sent
            assert run.stats.failures == 2


@dataclass
class BalancedCollectors(StoringCollector):
    """Collectors behind a load balancer, which forwards each request to the next one."""

    received: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    positions: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    present: str = "ab"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.log = self.present[(self.present.find(self.log) + 1) % len(self.present)]
        self.taken, self.position = self.received[self.log], self.positions[self.log]
        answer = await super().handle(request)
        self.positions[self.log] = self.position
        return answer


async def test_a_load_balancer_causes_no_endless_resending(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with (
            BalancedCollectors().serving() as collector,
            run_shipper(tmp_path, link_to(collector)) as run,
        ):
            assert isinstance(collector, BalancedCollectors)
            for _ in range(10):
                await send(run, 1)
            known = collector.positions["a"] + collector.positions["b"]
            for _ in range(10):
                await send(run, 1)
            assert sum(collector.positions.values()) == known + 10, "each is sent once"
            assert len(collector.duplicates) + known <= 10 + 6, "4 again, and 2 statements"
            assert {frame for taken in collector.received.values() for frame in taken} == set(
                run.sent
            )
            assert run.stats.collector_logs == 2
            collector.present = "b"  # a is lost
            run.clock.advance(FIRST_PAUSE_NS // SECOND_NS + 1)
            await run.clock.asleep(1)
            await send(run, 2)
            assert set(collector.received["b"]) == set(run.sent), "the other one gets the rest"
            collector.stored = collector.position + 1
            await send(run, 1)
            assert unstored(run) == (0, 0)
    (warning,) = (entry for entry in logs if entry["event"] == "several_collectors_found")
    assert warning["logs"] == 2


async def test_many_collectors_behind_a_load_balancer_get_each_envelope_once(
    tmp_path: Path,
) -> None:
    async with (
        BalancedCollectors(present="abcdefg").serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        assert isinstance(collector, BalancedCollectors)
        for _ in range(20):
            await send(run, 1)
        known = sum(collector.positions.values())
        for _ in range(20):
            await send(run, 1)
        assert sum(collector.positions.values()) == known + 20, "each is sent once"
        assert run.stats.collector_logs == 7


def test_more_collectors_at_one_url_than_are_remembered_are_reported_once() -> None:
    responding = RespondingLogs()
    with capture_logs() as logs:
        for second in range(3 * MAX_LOGS):
            responding.record("http://balancer", str(second % (MAX_LOGS + 1)), second * SECOND_NS)
    (error,) = (entry for entry in logs if entry["event"] == "too_many_collectors_found")
    assert error["max_logs"] == MAX_LOGS == len(responding.responses_ns)
    assert responding.count == MAX_LOGS + 1
    assert len(responding.record("http://balancer", "0", 3 * MAX_LOGS * SECOND_NS)) > 1
    responding.record("http://balancer", "0", 2 * LOG_EXPIRY_NS)
    assert (responding.count, responding.has_too_many) == (1, False)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40_000)), min_size=1, max_size=60))
def test_logs_at_one_url(responses: list[tuple[str, int]]) -> None:
    """A log counts if it responded last, or within the pause of one that is known to alternate; pauses grow."""
    responding, receipts, now_ns, pause_ns = RespondingLogs(), LogReceipts(), 0, 0
    last_ns: dict[str, int] = {}
    is_alternating, newest = False, ""
    for name, seconds in responses:
        now_ns += seconds * SECOND_NS
        last_ns = {n: at_ns for n, at_ns in last_ns.items() if now_ns - at_ns <= LOG_EXPIRY_NS}
        is_alternating = bool(last_ns.keys() - {name}) and (
            is_alternating or (name in last_ns and newest != name)
        )
        newest, last_ns[name] = name, now_ns
        logs = responding.record("http://balancer", name, now_ns)
        receipts.use(name, now_ns).append(ReceivedEnvelope(1, 1, now_ns))
        assert responding.responses_ns == last_ns
        assert {n for n in "abc" if receipts.find(n)} == last_ns.keys()
        assert responding.is_alternating is is_alternating
        assert name in logs
        assert FIRST_PAUSE_NS <= responding.pause_ns <= MAX_PAUSE_NS
        if not is_alternating:
            assert logs == {name}
        else:
            assert responding.pause_ns >= pause_ns
            assert logs == {n for n, at in last_ns.items() if now_ns - at <= responding.pause_ns}
        pause_ns = responding.pause_ns
    assert responding.record("http://other", "a", now_ns) == {"a"}
    assert responding.count == 1


def test_receipts_of_the_log_that_was_used_least_recently_are_forgotten() -> None:
    receipts = LogReceipts()
    for number in range(2 * MAX_LOGS):
        receipts.use("used", number)
        receipts.use(str(number), number).append(ReceivedEnvelope(number, number, number))
    assert len(receipts) == MAX_LOGS
    assert not receipts.find("0")
    assert receipts.find(str(2 * MAX_LOGS - 1))


async def test_a_restarted_agent_sends_again_what_is_not_stored(tmp_path: Path) -> None:
    collector = StoringCollector()
    async with collector.serving():
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await send(run, 2)
            await run.flush()
        assert len(collector.taken) == 3, "the shutdown sends, and does not wait for stored"
        assert spooled(tmp_path) == 3
        async with run_shipper(tmp_path, link_to(collector)) as again:
            await again.shipper.flush()
            await again.shipped(3)
            await again.shipper.wait_until_sent()
            assert collector.duplicates == run.sent
            collector.stored = collector.position
            again.origin = run.origin
            again.sent = list(run.sent)
            await again.flush()
            await again.shipped(4)
            assert unstored(again) == (0, 1)


async def test_a_collector_without_positions_gets_and_removes_everything(tmp_path: Path) -> None:
    async with (
        StoringCollector().serving() as collector,
        run_shipper(tmp_path, link_to(collector)) as run,
    ):
        await send(run, 2)
        collector.taken.clear()
        collector.script += [take] * 3
        await run.flush()
        await run.shipped(3)
        await run.shipper.wait_until_sent()
        assert sorted(collector.taken) == run.sent
        assert unstored(run) == (0, 0)
        assert spooled(tmp_path) == 0


async def test_positions_that_decrease_are_of_an_older_copy_of_the_state(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with (
            StoringCollector().serving() as collector,
            run_shipper(tmp_path, link_to(collector)) as run,
        ):
            assert isinstance(collector, StoringCollector)
            await send(run, 3)
            collector.lose("a")
            await run.flush()
            await run.shipped(4)
            await run.shipper.wait_until_sent()
            assert sorted(collector.taken) == run.sent
    assert [entry["event"] for entry in logs].count("collector_state_replaced") == 1


GOOD = {"log": "a", "position": 9, "stored": 9}
BAD: list[dict[str, object]] = [
    {"position": -1},
    {"stored": -1},
    {"stored": 10},
    {"stored": 1 << 63, "position": 1 << 63},
    {"position": 10**30},
    {"stored": 1.5},
    {"stored": "9"},
    {"stored": None},
    {"stored": True},
    {"log": 7},
    {"log": ""},
    {"log": "x" * 65},
    {"log": None},
    {"log": ["a"]},
]


@pytest.mark.parametrize("bad", [*BAD, *({"without": name} for name in GOOD)])
async def test_an_invalid_acknowledgement_is_reported_and_removes_nothing(
    tmp_path: Path, bad: dict[str, object]
) -> None:
    fields = GOOD | bad
    fields.pop(str(fields.pop("without", "")), None)
    answer = web.json_response({"accepted_frames": 1, "duplicate_frames": 0} | fields)
    with capture_logs() as logs:
        async with (
            StoringCollector().serving() as collector,
            run_shipper(tmp_path, link_to(collector)) as run,
        ):
            await send(run, 2)
            collector.script.append(answer)
            await run.flush()
            await run.failed()
            assert (spooled(tmp_path), run.stats.failures) == (3, 1)
            assert run.stats.dropped_frames == dict.fromkeys(run.stats.dropped_frames, 0)
            run.retry()
            await run.shipped(3)
    problems = [entry["problem"] for entry in logs if entry["event"] == "collector_unreachable"]
    assert len(problems) == 1
    assert "invalid acknowledgement from http" in problems[0]
    assert "expected log, position and stored" in problems[0]


async def test_at_the_bound_of_the_spool_received_envelopes_are_dropped_first(
    tmp_path: Path,
) -> None:
    collector = StoringCollector()
    async with collector.serving():
        link = link_to(collector, spool_bytes=1 << 16)
        async with run_shipper(tmp_path, link) as run:
            await send(run, 1)
            size = run.stats.unstored_bytes
            while not run.stats.dropped_frames["unstored"]:
                await send(run, 1)
                assert run.stats.unstored_bytes <= 1 << 16
            assert run.stats.unstored_bytes > (1 << 16) - (1 << 11) - 2 * size
            (gap,) = run.events
            assert gap.entity.key == ("unstored",)
            kept = run.stats.unstored_envelopes
            collector.script += [web.json_response({}, status=503)] * 3
            before = len(run.sent)
            await run.flush()
            await run.failed()
            for _ in range(kept):
                await run.flush()
            assert run.stats.dropped_frames["spool_full"] == 0, "those that wait are worth more"
            assert len(collector.taken) == before


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with file.open("ab", buffering=0) as opened:
        while True:
            opened.write(b"x" * 512)


async def test_a_full_disk_does_not_stop_the_receipt(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", 128) as directory:
        collector = StoringCollector()
        async with collector.serving(), run_shipper(directory, link_to(collector)) as run:
            await send(run, 1)
            filler = directory / "filler"
            with pytest.raises(OSError, match="space"):
                fill(filler)
            with capture_logs() as logs:
                await send(run, 2)
            assert run.stats.dropped_frames["unstored"] == 2
            assert run.stats.shipped_frames == len(run.sent) == 3
            assert unstored(run) == (0, 1)
            assert [entry["event"] for entry in logs].count("spool_failed") == 1
            filler.unlink()
            await send(run, 1)
            assert unstored(run) == (0, 2)
