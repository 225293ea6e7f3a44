"""Several collectors with one database: one is active, the others wait and refer to it, and one of them continues."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest
from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support import postgresql, sonic_switch
from support.waiting import wait_until

from bench.harness import free_port
from railscope_collector.config import (
    ClusterSettings,
    CollectorSettings,
    DiagnosisSettings,
    IngestLimits,
    LedgerSettings,
    SwitchesSettings,
)
from railscope_collector.diagnosis.saved_state import SavedDiagnosis

SWITCH = "leaf-07"
RECEIVED = sonic_switch.port_row(1)["SAI_PORT_STAT_IF_IN_OCTETS"]
pytestmark = pytest.mark.statements


def member(
    directory: Path, name: str, url: str, switches: str = "", group: str = "pod-1"
) -> CollectorSettings:
    """Settings of a collector of a group."""
    own = directory / name
    own.mkdir(exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    return msgspec.structs.replace(
        settings_in(own, stale_seconds=300, limits=IngestLimits()),
        listen=address,
        ledger=LedgerSettings(url=url),
        cluster=ClusterSettings(group=group, advertised_url=f"http://{address}"),
        switches=SwitchesSettings(file=switches),
        diagnosis=DiagnosisSettings(),
    )


async def becomes_ready(one: RunningCollector) -> None:
    async def is_ready() -> bool:
        return (await one.get("/-/ready"))[0] == 200

    await wait_until(is_ready, "it is ready")


async def waits_for(one: RunningCollector, active: RunningCollector) -> None:
    async def is_named() -> bool:
        return await one.get("/-/ready") == (503, f"not ready: waiting: {active.url} is active\n")

    await wait_until(is_named, "it names the active one")


async def waits_for_nothing(one: RunningCollector) -> None:
    async def is_idle() -> bool:
        return "railscope_diagnosis" not in (await one.get("/metrics"))[1]

    await wait_until(is_idle, "its diagnosis has ended")


async def referred(one: RunningCollector, path: str) -> tuple[int, str]:
    headers = {"Authorization": "Bearer token-reader"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(one.url + path, allow_redirects=False) as response,
    ):
        return response.status, response.headers.get("Location", "")


async def exposed(*collectors: RunningCollector) -> tuple[list[str], list[str]]:
    """Return the nodes and a counter of a port that all collectors together expose."""
    pages = "\n".join([(await one.get("/metrics"))[1] for one in collectors])
    port = f'{{switch="{SWITCH}",port="Ethernet0"}}'
    return (
        re.findall(r'^railscope_node_reporting\{node="(\w+)"\} 1$', pages, re.MULTILINE),
        re.findall(
            rf"^railscope_switch_port_receive_bytes_total{re.escape(port)} (\S+)$",
            pages,
            re.MULTILINE,
        ),
    )


async def test_one_collector_is_active_and_another_one_continues(
    tmp_path: Path, server: postgresql.PostgreSQL
) -> None:
    url, sender = server.database(), FrameSender("n1")
    body = sender.body(gpu_frames(sender), schemas=True)
    async with sonic_switch.sonic_switch() as switch, AsyncExitStack() as stack:
        file = str(switch.write_switches(tmp_path, plaintext=True, period_seconds=5.0))
        first = AsyncExitStack()
        active = await first.enter_async_context(run_collector(member(tmp_path, "a", url, file)))
        await becomes_ready(active)
        other = await stack.enter_async_context(run_collector(member(tmp_path, "b", url, file)))
        await waits_for(other, active)

        assert (await active.post(body))[0] == 200
        status, reply = await other.post(body)
        assert (status, reply["draining"]) == (503, True)

        async def is_shown() -> bool:
            return await exposed(active, other) == (["n1"], [RECEIVED])

        await wait_until(is_shown, "the active one shows node and switch")
        for path in ("/api/v1/nodes?limit=1", "/api/v1/incidents", "/", "/nodes/n1"):
            assert await referred(other, path) == (307, active.url + path)
        for path in ("/-/healthy", "/metrics", "/audit"):
            assert (await referred(other, path))[0] in {200, 403}

        await first.aclose()
        await becomes_ready(other)
        assert (await other.post(body))[0] == 200, "the agent sends again"

        async def is_continued() -> bool:
            return await exposed(other) == (["n1"], [RECEIVED])

        await wait_until(is_continued, "the other one shows node and switch")
        back = await stack.enter_async_context(run_collector(member(tmp_path, "a", url, file)))
        await waits_for(back, other)
        assert await exposed(back) == ([], [])

        other.collector.role.drain()
        await becomes_ready(back)

        async def refers() -> bool:
            return await referred(other, "/nodes") == (307, back.url + "/nodes")

        await wait_until(refers, "the drained one refers to the active one")
        drained, continued = other.collector.finalizer, back.collector.finalizer
        await drained.round(everything=True)
        await continued.round(everything=True)
        assert (drained.counts.intervals, continued.counts.intervals) == (0, 1), "it stores"
    server.drop(url)


async def test_the_next_active_collector_continues_with_the_incidents(
    tmp_path: Path, server: postgresql.PostgreSQL
) -> None:
    url = server.database()
    saved = SavedDiagnosis(
        first_ns=10_000_000_000,
        slot=7,
        nodes=[],
        nics=[],
        gpus=[],
        mounts=[],
        leaf_names=[],
        incidents=[],
        opened={"pfc_storm": 3},
    )
    incidents = tmp_path / "a" / "state" / "diagnosis" / "incidents"
    counted = 'railscope_incidents_opened_total{class="pfc_storm"} 3'

    async def shows(one: RunningCollector) -> bool:
        return counted in (await one.get("/metrics"))[1]

    async with AsyncExitStack() as stack:
        incidents.parent.mkdir(parents=True)
        incidents.write_bytes(msgspec.msgpack.encode(saved))
        first = AsyncExitStack()
        active = await first.enter_async_context(run_collector(member(tmp_path, "a", url)))
        await wait_until(lambda: shows(active), "it has read the incidents")
        other = await stack.enter_async_context(run_collector(member(tmp_path, "b", url)))
        await waits_for(other, active)
        assert "railscope_diagnosis" not in (await other.get("/metrics"))[1]
        further = member(tmp_path, "c", url, group="pod-2")
        third = await stack.enter_async_context(run_collector(further))
        await becomes_ready(third)
        assert not await shows(third), "of another group"
        active.collector.role.drain()
        await waits_for_nothing(active)
        assert not await shows(active)
        await first.aclose()
        await wait_until(lambda: shows(other), "it continues with the incidents")
    server.drop(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://localhost:9470", r"invalid cluster.group 'x'.*fix: set ledger.url"),
        ("", r"missing cluster.advertised_url of cluster.group 'x'.*fix: set it"),
    ],
)
async def test_a_group_that_cannot_work_is_rejected(tmp_path: Path, url: str, problem: str) -> None:
    cluster = ClusterSettings(group="x", advertised_url=url)
    settings = msgspec.structs.replace(settings_in(tmp_path), cluster=cluster)
    with pytest.raises(Exception, match=problem):
        async with run_collector(settings):
            pass
