"""Killing either side at any moment loses no acknowledged frame and counts none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest
from chain_support import ProgramDirectory
from support.waiting import wait_until

from railscope.envelopes import unpack
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    read_segment,
    segment_numbers,
    segment_path,
)

MAX_BYTES = 64 << 20


def identities(
    site: ProgramDirectory, state: str = "collector"
) -> Counter[tuple[str, str, str, int]]:
    """Count every frame in the frame log, by identity."""
    directory = site.directory / state / "frames"
    found: Counter[tuple[str, str, str, int]] = Counter()
    for number in segment_numbers(directory):
        for _, record in read_segment(segment_path(directory, number), FrameLogStats()):
            envelope = unpack(record.body, MAX_BYTES)
            for batch in envelope.batches:
                for row in range(batch.rows):
                    key = (envelope.node, envelope.run, batch.stream, batch.first_sequence + row)
                    found[key] += 1
    return found


def frames_of_runs(
    found: Iterable[tuple[str, str, str, int]],
) -> dict[tuple[str, str, str], set[int]]:
    runs: dict[tuple[str, str, str], set[int]] = {}
    for node, run, stream, sequence in found:
        runs.setdefault((node, run, stream), set()).add(sequence)
    return runs


@pytest.mark.journey
async def test_kill_both_sides_again_and_again(site: ProgramDirectory):
    nodes = {"n1": "training", "n2": "incast"}
    site.prepare(nodes)
    collector = await site.collector()
    agents = {node: await site.agent(node) for node in nodes}
    for number in range(4):
        grown = len(identities(site)) + 10

        async def more(goal: int = grown) -> bool:
            return len(identities(site)) >= goal

        await wait_until(more, "frames of the agents are in the frame log")
        if number % 2:
            agents["n1"].kill()
            await agents["n1"].wait_for_end()
            agents["n1"] = await site.agent("n1")
        collector.kill()
        await collector.wait_for_end()
        collector = await site.collector()
    for agent in agents.values():
        await agent.stop()
    last = {
        node: agent.find(r"agent_stopped shipped_frames=(\d+) dropped_frames=0 waiting_envelopes=0")
        for node, agent in agents.items()
    }
    assert all(last.values()), [agent.log_tail() for agent in agents.values()]
    found = identities(site)
    assert all(count == 1 for count in found.values()), "a frame was stored twice"
    for run, sequences in frames_of_runs(found).items():
        assert sequences == set(range(1, max(sequences) + 1)), f"a hole in {run}"
    await wait_until(partial(site.answers, "/api/v1/account"), "the account is computed")
    assert (await site.get("/api/v1/account"))["balances"]
