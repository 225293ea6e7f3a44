"""Ingest over real HTTP: what is acknowledged, what is refused and with which words."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from makers import SECOND, Sender, gpu_schema, rdma_schema

from collector.access.credentials import digest
from collector.config import Audit, CollectorSettings, FrameLogSettings, Limits, MeteringSettings
from collector.ingest import NodeSender
from collector.segments import LogStats, read_segment, segment_path, segments
from collector.service import Collector
from railscope.catalog import gpu
from railscope.entity import Entity
from railscope.frame import Frame, Schema
from railscope.settings import SettingsError
from railscope.wire import (
    MAGIC,
    SENT_HEADER,
    Envelope,
    WireEntity,
    WireGroup,
    WireSchema,
    pack,
    zstd,
)

SMALL = Limits(
    body_bytes=200_000, unpacked_bytes=1_000_000, columns=50, rows=100, schemas_per_node=5
)


class Running:
    """A collector on a free port, and requests to it."""

    def __init__(self, settings: CollectorSettings) -> None:
        self.collector = Collector(settings)
        self.url = ""

    async def post(
        self, body: bytes, *, node: str = "n1", at: int = 100, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        sent = Sender(node).sent(at).to_headers()
        given = {"Authorization": f"Bearer token-{node}", **sent} | (headers or {})
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + "/v1/frames", data=body, headers=given) as response,
        ):
            return response.status, await response.json()

    async def get(self, path: str, token: str = "token-reader") -> tuple[int, Any]:  # noqa: S107 - a test's token
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + path, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, text

    async def json(self, path: str) -> Any:
        status, text = await self.get(path)
        assert status == 200, text
        return msgspec.json.decode(text)


def settings_in(folder: Path, **more: Any) -> CollectorSettings:
    lines = [f'{name} = "{digest("token-" + name)}"' for name in ("n1", "n2", "n3")]
    reader = f'[operators]\nreader = "{digest("token-reader")}"\n'
    (folder / "tokens.toml").write_text("[nodes]\n" + "\n".join(lines) + "\n" + reader)
    given: dict[str, Any] = {
        "listen": "127.0.0.1:0", "state_directory": str(folder / "state"),
        "tokens_file": str(folder / "tokens.toml"), "limits": SMALL, "views_seconds": 0.1,
        "audit": Audit(ask_agents=0),
    }  # fmt: skip
    return CollectorSettings(**(given | more))


@contextlib.asynccontextmanager
async def running(
    settings: CollectorSettings, ready: Callable[[Running], None] = lambda _one: None
) -> AsyncIterator[Running]:
    one = Running(settings)
    ready(one)
    listening = asyncio.Event()

    def on_listening(host: str, port: int) -> None:
        scheme = "https" if settings.tls.certificate_file else "http"
        one.url = f"{scheme}://{host}:{port}"
        listening.set()

    one.collector.on_listening = on_listening
    task = asyncio.create_task(one.collector.run())
    waiting = asyncio.create_task(listening.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.wait({task})


def logged(folder: Path) -> int:
    frames = folder / "state" / "frames"
    return sum(
        1 for n in segments(frames) for _ in read_segment(segment_path(frames, n), LogStats())
    )


def some(sender: Sender, at: int = 0, rows: int = 3) -> list[Frame]:
    return sender.frames(
        gpu_schema(sender.node), [[50, 60, 1000, 2000, 10 + r, 20 + r] for r in range(rows)], at=at
    )


async def test_a_collector_asks_for_the_schema_once_and_then_acknowledges(tmp_path: Path):
    sender = Sender()
    async with running(settings_in(tmp_path)) as one:
        first = some(sender)
        status, reply = await one.post(sender.body(first))
        assert status == 409
        assert len(reply["unknown_schemas"]) == 1
        status, reply = await one.post(sender.body(first, schemas=True))
        assert (status, reply) == (200, {"accepted_frames": 3, "duplicate_frames": 0})
        status, reply = await one.post(sender.body(some(sender, at=3)))
        assert (status, reply) == (200, {"accepted_frames": 3, "duplicate_frames": 0})
        row = one.collector.core.fleet.nodes["n1"].rows["gpu"]
        assert row.block.values[row.index].tolist() == [50, 60, 1000, 2000, 12, 22]
    assert logged(tmp_path) == 2


async def test_sending_again_counts_nothing_twice(tmp_path: Path):
    sender = Sender()
    body = sender.body(some(sender), schemas=True)
    async with running(settings_in(tmp_path)) as one:
        answers = await asyncio.gather(*(one.post(body) for _ in range(5)))
        assert all(status == 200 for status, _ in answers)
        assert sum(reply["accepted_frames"] for _, reply in answers) == 3
        assert one.collector.core.counts.frames == 3
    assert logged(tmp_path) == 1


async def test_reordered_envelopes_all_count(tmp_path: Path):
    sender = Sender()
    bodies = [sender.body(some(sender, at=3 * n), schemas=True) for n in range(4)]
    async with running(settings_in(tmp_path)) as one:
        for body in (bodies[2], bodies[0], bodies[3]):
            assert (await one.post(body))[1]["accepted_frames"] == 3
        assert one.collector.core.received.holes() == 3
        assert (await one.post(bodies[1]))[1]["accepted_frames"] == 3
        assert one.collector.core.received.holes() == 0
        row = one.collector.core.fleet.nodes["n1"].rows["gpu"]
        assert row.boot_ns == (5_000 + 11) * SECOND, "the newest frame stays the present state"


async def test_a_restart_leaves_the_state_as_it_was(tmp_path: Path):
    sender, other = Sender(), Sender("n2")
    settings = settings_in(tmp_path, frame_log=FrameLogSettings(segment_bytes=1 << 16))
    async with running(settings) as one:
        await one.post(sender.body(some(sender), schemas=True))
        await one.post(other.body(some(other, at=5), schemas=True), node="n2")
        before = one.collector.core
    async with running(settings) as one:
        after = one.collector.core
        assert after.received == before.received
        assert after.evidence.pages() == before.evidence.pages()
        for name in ("n1", "n2"):
            old, new = before.fleet.nodes[name].rows["gpu"], after.fleet.nodes[name].rows["gpu"]
            assert old.block.values[old.index].tolist() == new.block.values[new.index].tolist()
            assert old.instant_ns == new.instant_ns
        body = Sender("n2", sequences={}).body(some(Sender("n2"), at=5))
        status, reply = await one.post(body, node="n2")
        assert (status, reply["accepted_frames"]) == (200, 0), (
            "a retry after the crash is no new frame"
        )


async def test_a_checkpoint_carries_over_what_deleted_segments_said(tmp_path: Path):
    sender = Sender()
    log = FrameLogSettings(segment_bytes=1 << 16, most_bytes=1 << 20)
    settings = settings_in(tmp_path, frame_log=log, limits=Limits(requests_per_second=10_000))
    rows = [[n * 7919 % 1009, 60, n * 104729, 2000, n, 20] for n in range(2000)]
    async with running(settings) as one:
        bodies = [
            sender.body(sender.frames(gpu_schema("n1"), rows, at=2000 * n), schemas=n == 0)
            for n in range(60)
        ]
        for body in bodies:
            assert (await one.post(body, at=200_000))[0] == 200
        one.collector.log.most_bytes = 1
        for n in range(60, 75):
            await one.post(
                sender.body(sender.frames(gpu_schema("n1"), rows, at=2000 * n)), at=200_000
            )
        assert segments(tmp_path / "state" / "frames")[0] > 1
        before = one.collector.core
    async with running(settings) as one:
        assert one.collector.core.received == before.received
        assert one.collector.core.evidence.pages() == before.evidence.pages()
        assert (await one.post(bodies[0], at=200_000))[1]["accepted_frames"] == 0


REFUSALS = {
    "no magic": (b"hello", 400, "does not start with"),
    "truncated": (Sender().body(some(Sender()), schemas=True)[:-20], 400, "cut off"),
    "no zstd": (MAGIC + b"\0" * 100, 400, "cannot be decompressed"),
    "no envelope": (MAGIC + zstd.compress(msgspec.msgpack.encode([1, 2])), 400, "no envelope"),
    "something behind": (Sender().body(some(Sender())) + b"x", 400, "behind its end"),
    "a bomb": (MAGIC + zstd.compress(bytes(50_000_000)), 400, "more than 1000000 bytes"),
    "too large": (bytes(300_000), 413, "larger than"),
    "another version": (
        pack(Envelope(99, "n1", "r", "b")), 426, "is of version 99, this program speaks 1"
    ),
    "another node": (Sender("n2").body(some(Sender("n2")), schemas=True), 403, "credential is that of 'n1'"),
    "a million columns": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (
            WireGroup("railscope_gpu_power_watts", (1, 1000), (0,) * 90_000),
        ), (WireEntity("gpu", ("G",)),)),))), 422, "more than 50 columns",
    ),
    "a column of no entity": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (
            WireGroup("railscope_gpu_power_watts", (1, 1000), (5,)),
        ), (WireEntity("gpu", ("G",)),)),))), 422, "a column of no entity",
    ),
    "too many GPUs": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (), tuple(
            WireEntity("gpu", (f"G{n}",)) for n in range(300)
        )),))), 422, "more than 50 columns or entities",
    ),
    "a line break in a name": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (), (WireEntity("gpu", ("G\nx",)),)),))),
        422, "control characters",
    ),
    "a scale of nothing": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (
            WireGroup("railscope_unknown", (1, 0), (0,)),
        ), (WireEntity("gpu", ("G",)),)),))), 422, "is none",
    ),
    "another catalog": (
        pack(Envelope(1, "n1", "r", "b", (WireSchema("gpu", (
            WireGroup("railscope_gpu_power_watts", (1, 1), (0,)),
        ), (WireEntity("gpu", ("G",)),)),))), 422, "of different versions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
async def test_malicious_and_damaged_bodies_are_refused_and_change_nothing(
    tmp_path: Path, name: str
):
    body, expected, words = REFUSALS[name]
    async with running(settings_in(tmp_path)) as one:
        status, reply = await one.post(body)
        assert (status, words in reply["error"]) == (expected, True), reply
        assert sum(one.collector.core.counts.rejected.values()) == 1
        assert not one.collector.core.fleet.nodes
        good = Sender()
        assert (await one.post(good.body(some(good), schemas=True)))[0] == 200
    assert logged(tmp_path) == 1


async def test_batches_whose_parts_lie_are_refused(tmp_path: Path):
    sender = Sender()
    envelope = sender.envelope(some(sender), schemas=True)
    batch = envelope.batches[0]
    fields = {name: getattr(batch, name) for name in batch.__struct_fields__}
    lies: list[dict[str, Any]] = [
        {"base": batch.base + bytes(8)}, {"steps": b""}, {"first_sequence": 0}, {"boot_ns": ()},
        {"wall_ns": (), "boot_ns": ()}, {"reasons": b"\1"}, {"changed": b"\xff\xff"},
        {"stream": "host"}, {"wall_ns": batch.wall_ns * 100, "boot_ns": batch.boot_ns * 100},
    ]  # fmt: skip
    async with running(settings_in(tmp_path)) as one:
        for lie in lies:
            made = type(batch)(**fields | lie)
            forged = msgspec.structs.replace(envelope, batches=(made,))
            status, _ = await one.post(pack(forged))
            assert status == 400, lie
        assert one.collector.core.counts.frames == 0


async def test_clocks_that_cannot_be_are_refused(tmp_path: Path):
    sender = Sender()
    ahead = sender.body(some(sender, at=5000), schemas=True)
    async with running(settings_in(tmp_path)) as one:
        status, reply = await one.post(ahead, at=10)
        assert (status, "runs backwards or ahead" in reply["error"]) == (422, True)
        status, reply = await one.post(sender.body(some(sender)), at=40 * 86_400)
        assert (status, "older than 30 days" in reply["error"]) == (422, True)
        body = sender.body(some(sender))
        status, reply = await one.post(body, headers={SENT_HEADER: "yesterday"})
        assert (status, "must give wall clock" in reply["error"]) == (400, True)


async def test_frames_of_another_boot_reach_no_further_back_than_others(tmp_path: Path):
    sender = Sender()
    envelope = sender.envelope(some(sender), schemas=True)
    batch = envelope.batches[0]
    assert batch.rows > 1
    late = (*batch.boot_ns[:-1], batch.boot_ns[-1] + 90 * 86_400 * 10**9)
    batches = (msgspec.structs.replace(batch, boot_ns=late),)
    forged = msgspec.structs.replace(envelope, boot_id="the one before", batches=batches)
    async with running(settings_in(tmp_path)) as one:
        status, reply = await one.post(pack(forged))
        assert (status, "older than 30 days" in reply["error"]) == (422, True), reply


async def test_a_flood_in_one_envelope_is_refused(tmp_path: Path):
    limits = Limits(batches=3, events=2, gaps=2)
    sender = Sender()
    async with running(settings_in(tmp_path, limits=limits)) as one:
        frames = [frame for n in range(8) for frame in some(sender, at=2 * n, rows=1)]
        status, reply = await one.post(sender.body(frames[::2], schemas=True))
        assert (status, "4 batches" in reply["error"]) == (422, True)
        for frame in frames[:6:2]:
            assert (await one.post(sender.body([frame], schemas=True)))[0] == 200
        status, reply = await one.post(sender.body(frames[6:7]))
        assert (status, "3 holes" in reply["error"]) == (422, True)


@pytest.mark.parametrize("header", ["9" * 400 + " 5 b", "1 " + "9" * 19 + " b", "-1 5 b"])
async def test_clocks_beyond_all_bounds_are_refused(tmp_path: Path, header: str):
    async with running(settings_in(tmp_path)) as one:
        status, _ = await one.post(Sender().body([]), headers={SENT_HEADER: header})
        assert status == 400
        await one.collector.refresher.refresh()


async def test_a_silent_node_and_its_events_outlive_the_segments_that_told_of_them(tmp_path: Path):
    settings = settings_in(tmp_path, frame_log=FrameLogSettings(segment_bytes=1 << 16))
    rng = random.Random(1)  # noqa: S311 - repeatable on purpose
    async with running(settings) as one:
        await one.post(Sender("n2").body(some(Sender("n2")), schemas=True), node="n2")
        sender = Sender()
        while one.collector.log.number < 3:
            rows = [[rng.randrange(1 << 40) for _ in range(6)] for _ in range(90)]
            last = 100_000
            body = sender.body(
                sender.frames(gpu_schema("n1"), rows, at=90 * len(sender.run)), schemas=True
            )
            assert (await one.post(body, at=last))[0] == 200
    async with running(settings) as one:
        assert set(one.collector.core.fleet.nodes) == {"n1", "n2"}
        assert one.collector.core.gpus_of["n2"] == {0: "GPU-n2-0", 1: "GPU-n2-1"}


async def test_tokens_decide_who_speaks_and_who_reads(tmp_path: Path):
    sender = Sender()
    body = sender.body(some(sender), schemas=True)
    async with running(settings_in(tmp_path)) as one:
        for wrong in ("", "Bearer", "Bearer wrong", "Basic token-n1"):
            status, reply = await one.post(body, headers={"Authorization": wrong})
            assert (status, "no credential" in reply["error"]) == (401, True)
        status, reply = await one.post(body, headers={"Authorization": "Bearer token-reader"})
        assert (status, reply["error"]) == (403, "not for a credential of role operator")
        assert one.collector.core.counts.rejected == {"token": 4, "role": 1}
        for path in ("/metrics", "/api/v1/nodes", "/api/v1/account", "/api/v1/nodes/n1"):
            assert (await one.get(path, token="token-n1"))[0] == 403  # noqa: S106 - a test's token
        assert (await one.get("/-/healthy", token=""))[0] == 200
        assert (await one.get("/metrics"))[0] == 200


async def test_a_node_that_sends_too_often_is_told_to_wait(tmp_path: Path):
    sender = Sender()
    body = sender.body(some(sender), schemas=True)
    limits = Limits(requests_per_second=0.5)
    async with running(settings_in(tmp_path, limits=limits)) as one:
        statuses = [(await one.post(body))[0] for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        assert (await one.post(Sender("n2").body([]), node="n2"))[0] == 200, (
            "others are not held up"
        )


async def test_frames_stay_with_the_agent_while_evidence_of_others_waits(tmp_path: Path):
    waits, at_once = (
        MeteringSettings(quiet_seconds=3600),
        MeteringSettings(period_seconds=0.1, quiet_seconds=0),
    )
    limits = Limits(waiting_evidence_parts=1)
    senders = [Sender(node) for node in ("n1", "n2", "n3")]
    bodies = {one.node: one.body(some(one), schemas=True) for one in senders}
    async with running(settings_in(tmp_path, limits=limits, metering=waits)) as one:
        answers = [await one.post(body, node=node) for node, body in bodies.items()]
        assert [status for status, _ in answers] == [200, 200, 503]
        assert answers[2][1]["error"] == "2 parts of evidence wait for the database, more than 1"
        assert (await one.post(bodies["n1"]))[0] == 200, "what is durable already is acknowledged"
        assert one.collector.core.counts.rejected == {"evidence": 1}
    async with running(settings_in(tmp_path, limits=limits, metering=at_once)) as one:
        while one.collector.core.evidence.chunks:  # noqa: ASYNC110 - no event for tests
            await asyncio.sleep(0.01)
        assert (await one.post(bodies["n3"], node="n3"))[0] == 200


async def test_schemas_of_one_node_are_bounded(tmp_path: Path):
    async with running(settings_in(tmp_path)) as one:
        statuses = []
        for number in range(7):
            schema = Schema("gpu", ((gpu.GPU_POWER, Entity(gpu.GPU_POWER.about, (f"G{number}",))),))
            sender = Sender()
            statuses.append(
                (await one.post(sender.body(sender.frames(schema, [[1]], at=0), schemas=True)))[0]
            )
        assert statuses == [200] * 5 + [429] * 2


def test_the_bound_on_schemas_is_one_of_an_hour():
    """Or else a node whose machine changes often would one day not be heard any more."""
    hour_ns, sender = 3600 * 10**9, NodeSender().schemas
    assert sender.fits(5, 5, 10 * hour_ns)
    sender.count += 5
    assert not sender.fits(1, 5, 11 * hour_ns - 1)
    assert sender.fits(1, 5, 11 * hour_ns)
    assert not sender.fits(6, 5, 11 * hour_ns)


async def test_two_collectors_do_not_share_a_state_directory(tmp_path: Path):
    settings = settings_in(tmp_path)
    async with running(settings):
        with pytest.raises(SettingsError, match="in use by another collector"):
            async with running(settings):
                pass


async def test_views_over_the_api(tmp_path: Path):
    sender = Sender()
    claims = tmp_path / "claims.csv"
    claims.write_text("tenant,holds,from,to\nvision,GPU-n1-0,2026-01-01T00:00:00Z,\n")
    async with running(settings_in(tmp_path, claims_file=str(claims))) as one:
        frames = some(sender) + sender.frames(
            rdma_schema(), [[0, 0, 0, 0], [1000, 2000, 4, 6]], at=0
        )
        assert (await one.post(sender.body(frames, schemas=True), at=3))[0] == 200
        await one.collector.refresher.refresh()
        await asyncio.to_thread(one.collector.files.refresh)
        assert await one.collector.settler.attempt()
        await one.collector.refresher.refresh()
        cluster = {r["metric"]: r["value"] for r in (await one.json("/api/v1/cluster"))["rows"]}
        assert cluster["railscope_cluster_sum_gpu_power_watts"] == 3.0
        assert cluster["railscope_cluster_sum_rdma_transmit_bytes_per_second"] == 3000.0
        rails = [
            (r["labels"]["rail"], r["value"]) for r in (await one.json("/api/v1/rails"))["rows"]
            if r["metric"] == "railscope_rail_sum_rdma_transmit_bytes_per_second"
        ]  # fmt: skip
        assert rails == [("0", 1000.0), ("1", 2000.0)]
        tenants = {
            r["metric"]: r["value"] for r in (await one.json("/api/v1/tenants"))["rows"]
            if r["labels"]["tenant"] == "vision"
        }  # fmt: skip
        assert tenants["railscope_tenant_sum_gpu_power_watts"] == 1.0
        assert tenants["railscope_tenant_sum_rdma_transmit_bytes_per_second"] == 1000.0, "its rail"
        node = await one.json("/api/v1/nodes/n1")
        readings = {
            (r["metric"], *r["entity"]): r["value"] for r in node["streams"]["rdma"]["readings"]
        }
        assert readings["railscope_rdma_transmit_bytes_total", "mlx5_1", "1"] == 2000
        rolled = {(r["metric"], r["rollup"]): r["value"] for r in node["rollups"]}
        assert rolled["railscope_gpu_power_watts", "sum"] == 3.0
        assert rolled["railscope_gpu_power_watts", "max"] == 2.0
        assert rolled["railscope_rdma_transmit_bytes_total", "sum"] == 3000.0
        assert (await one.get("/api/v1/nodes/nowhere"))[0] == 404
        account = await one.json("/api/v1/account")
        assert account["balances"]
        assert account["gpus"] == 2
        parts = sum(int(account[part]) for part in ("held_ns", "idle_ns", "unknown_ns"))
        assert parts == int(account["capacity_ns"]) > 0


async def test_no_account_before_it_is_known_who_holds_what(tmp_path: Path):
    claims = tmp_path / "claims.csv"
    claims.write_text("who,knows\n")
    async with running(settings_in(tmp_path, claims_file=str(claims))) as one:
        await one.collector.refresher.refresh()
        assert (await one.get("/api/v1/account"))[0] == 503
        claims.write_text("tenant,holds,from,to\nvision,n1,2026-01-01T00:00:00Z,\n")
        await asyncio.to_thread(one.collector.files.refresh)
        assert await one.collector.settler.attempt()
        await one.collector.refresher.refresh()
        assert (await one.get("/api/v1/account"))[0] == 200


async def test_a_silent_node_is_counted_as_silent_and_its_values_do_not_count(tmp_path: Path):
    sender = Sender()
    async with running(settings_in(tmp_path)) as one:
        assert (await one.post(sender.body(some(sender), schemas=True), at=300))[0] == 200
        views = await one.collector.refresher.refresh()
        cluster = {cell.metric.name: cell.value for cell in views.cluster.cells}
        assert cluster["railscope_cluster_nodes"] == 1
        assert cluster["railscope_cluster_nodes_reporting"] == 0
        assert "railscope_cluster_sum_gpu_power_watts" not in cluster
        status, text = await one.get("/metrics")
        assert status == 200
        assert 'railscope_node_reporting{node="n1"} 0' in text
