"""A real collector is killed, files of its state directory are lost, and it is started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory
from crash_support import SMALL, SharingAgent, read, send_until_acknowledged

from railscope_collector.access.credentials import digest_token
from railscope_collector.framelog.segment_files import segment_numbers

FRAMES = 5


async def lost_files(site: ProgramDirectory) -> int:
    """Return the collector's counter of lost files."""
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("railscope_collector_lost_files "):
                return int(line.split()[1])
    return -1


def remove(state: Path, what: str) -> None:
    if what == "segment":
        number = segment_numbers(state / "frames")[-1]
        for path in (state / "frames").glob(f"frames-{number:010d}-*"):
            path.unlink()
    elif what == "frames":
        shutil.rmtree(state / "frames")
    elif what == "tail":
        (path,) = (state / "frames").glob(f"frames-{segment_numbers(state / 'frames')[-1]:010d}-*")
        path.write_bytes(path.read_bytes()[:-1])
    elif what == "clock":
        (state / "clock").unlink()
    elif what == "clock halved":
        (state / "clock").write_bytes((state / "clock").read_bytes()[:40])
    elif what == "schemas":
        shutil.rmtree(state / "schemas")


# Each kind of loss in one process: tests/collector/test_at_rest.py.
@pytest.mark.parametrize(
    "what",
    [
        "segment",
        pytest.param("frames", marks=pytest.mark.thorough),
        pytest.param("tail", marks=pytest.mark.thorough),
        "schemas",
        "clock",
        pytest.param("clock halved", marks=pytest.mark.thorough),
    ],
)
async def test_what_was_lost_while_it_was_down_is_reported_and_recorded(
    site: ProgramDirectory, what: str
) -> None:
    (site.directory / "tokens.toml").write_text(f'[nodes]\nn1 = "{digest_token("token-n1")}"\n')
    agent, state = SharingAgent(), site.directory / "collector"
    collector = await site.collector(**SMALL)
    await send_until_acknowledged(site, agent.body(FRAMES), agent.at)
    assert await lost_files(site) == 0
    collector.kill()
    await collector.wait_for_end()
    remove(state, what)
    collector = await site.collector(**SMALL)
    count = await lost_files(site)
    assert count > 0
    await collector.find_logged("file_lost")
    gaps = [one for one in read(state / "audit") if one.type == "evidence.gap"]
    assert [(gap.out, gap.data["what"], gap.data["count"]) for gap in gaps] == [
        ("failed", "files", count)
    ]
    await collector.stop()
    collector = await site.collector(**SMALL)
    assert await lost_files(site) == count, "as long as nobody accepts it"
    await collector.stop()
