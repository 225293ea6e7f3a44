"""The end of a run: the spool is on the disk, and the next run states its last sequence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.collector import ScriptedCollector, take
from support.reading import ORIGIN
from support.shipping import link_to, run_shipper

from railscope.durable_files import read_json
from railscope.envelopes import unpack
from railscope.wire import Envelope, RunEnd, WireError, envelope, pack
from railscope_agent.shipping.run_end import RUN_END_FILE

NEXT = replace(ORIGIN, run="next")


class RunEndCollector(ScriptedCollector):
    """A collector that stores the end of an earlier run from each envelope."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[RunEnd | None] = []

    async def note(self, _: Any, request: web.Request, envelope: Envelope) -> web.Response:
        """Accept an envelope."""
        if envelope.batches:
            self.ended.append(envelope.ended)
        answer: web.Response = await take(self, request, envelope)
        return answer


async def shipped(directory: Path, collector: RunEndCollector, origin: Any, envelopes: int) -> None:
    collector.script.extend([collector.note] * 8)
    async with collector.serving(), run_shipper(directory, link_to(collector), origin) as ship:
        for _ in range(envelopes):
            await ship.flush(2)
        await ship.shipped(2 * envelopes)


async def test_the_next_run_states_once_how_far_the_last_one_came(tmp_path: Path):
    first, second = RunEndCollector(), RunEndCollector()
    await shipped(tmp_path, first, ORIGIN, 2)
    assert first.ended == [None] * len(first.ended)
    await shipped(tmp_path, second, NEXT, 2)
    assert second.ended[0] == RunEnd(ORIGIN.run, {"gpu": 4})
    assert second.ended[-1] is None


async def test_a_killed_run_has_stated_how_far_it_came(tmp_path: Path):
    collector = RunEndCollector()
    async with collector.serving(), run_shipper(tmp_path, link_to(collector), ORIGIN) as ship:
        for count in (2, 4, 6):
            await ship.flush(2)
            await ship.shipped(count)
            stated = read_json(tmp_path / RUN_END_FILE, RunEnd)
            assert stated == RunEnd(ORIGIN.run, {"gpu": count})


async def test_a_spool_that_lost_its_newest_envelope_shows_it(tmp_path: Path):
    """Files that vanish while the agent is down are stated by the run after it."""
    collector = RunEndCollector()
    link = link_to(collector, url="http://127.0.0.1:9")
    async with run_shipper(tmp_path, link, ORIGIN) as ship:
        await ship.flush(3)
        await ship.flush(2)
        await ship.failed()
    *_, newest = sorted((tmp_path / "spool").glob("*.envelope"))
    newest.unlink()
    collector.script.extend([collector.note] * 8)
    async with collector.serving(), run_shipper(tmp_path, link_to(collector), NEXT) as ship:
        await ship.flush(1)
        await ship.shipped(4)
    assert [frame[3] for frame in collector.taken if frame[1] == ORIGIN.run] == [1, 2, 3]
    assert RunEnd(ORIGIN.run, {"gpu": 5}) in collector.ended


async def test_a_damaged_statement_is_put_aside(tmp_path: Path):
    (tmp_path / RUN_END_FILE).write_text("not JSON")
    collector = RunEndCollector()
    await shipped(tmp_path, collector, NEXT, 1)
    assert collector.ended == [None] * len(collector.ended)
    assert (tmp_path / f"{RUN_END_FILE}.damaged").exists()


async def test_a_run_that_ends_before_its_first_push_leaves_the_older_statement(tmp_path: Path):
    collector = RunEndCollector()
    await shipped(tmp_path, collector, ORIGIN, 1)
    link = link_to(collector, url="http://127.0.0.1:9")
    async with run_shipper(tmp_path, link, replace(ORIGIN, run="short")):
        await asyncio.sleep(0)
    last = RunEndCollector()
    await shipped(tmp_path, last, NEXT, 1)
    assert last.ended[0] == RunEnd(ORIGIN.run, {"gpu": 2})


@pytest.mark.parametrize(
    "ended",
    [
        RunEnd("r", {str(number): 1 for number in range(257)}),
        RunEnd("r" * 256, {"gpu": 1}),
        RunEnd("r", {"g" * 256: 1}),
        RunEnd("r", {"gpu": 0}),
        RunEnd("r", {"gpu": (1 << 63) - 1}),
    ],
)
def test_a_statement_beyond_its_bounds_is_rejected(ended: RunEnd):
    body = pack(envelope(ORIGIN, (), (), agent_version="t", ended=ended))
    with pytest.raises(WireError):
        unpack(body, 1 << 20)
    good = RunEnd("r", {"gpu": 1})
    assert (
        unpack(pack(envelope(ORIGIN, (), (), agent_version="t", ended=good)), 1 << 20).ended == good
    )
