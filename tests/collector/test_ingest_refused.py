"""Ingest over real HTTP: rejected envelopes and the texts of the responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from makers import FrameSender
from running_collector import SMALL, gpu_frames, logged_envelopes, run_collector, settings_in

from railscope.wire import (
    MAGIC,
    SENT_HEADER,
    VERSION,
    Batch,
    Envelope,
    NameRows,
    Shape,
    Slot,
    WireEntity,
    WireGroup,
    content_hash,
    encode_part,
    pack,
    zstd,
)
from railscope_collector.config import IngestLimits
from railscope_collector.http.envelope_senders import NodeSender

POWER = "railscope_gpu_power_watts"
GPU_SLOT: tuple[tuple[Slot, ...], tuple[int, ...]] = (Slot("gpu", 0),), (-1,)


def refused(shape: Shape | None = None, names: NameRows | None = None) -> bytes:
    """An envelope with a shape or with names."""
    shapes = () if shape is None else (encode_part(shape),)
    lists = () if names is None else (encode_part(names),)
    return pack(Envelope(VERSION, "n1", "r", "b", shapes, lists))


def misfit(names: NameRows) -> bytes:
    """An envelope with a frame of one GPU and these names."""
    shape = encode_part(Shape("gpu", (WireGroup(POWER, (1, 1000), (0,)),), *GPU_SLOT))
    hashes = content_hash(shape), content_hash(encode_part(names))
    batch = Batch("gpu", *hashes, 1, (1,), (1,), bytes(8), bytes(1))
    return pack(Envelope(VERSION, "n1", "r", "b", (shape,), (encode_part(names),), (batch,)))


REFUSALS = {
    "no magic": (b"hello", 400, "which starts with"),
    "truncated": (FrameSender().body(gpu_frames(FrameSender()), schemas=True)[:-20], 400, "truncated"),
    "no zstd": (MAGIC + b"\0" * 100, 400, "cannot decompress"),
    "no envelope": (MAGIC + zstd.compress(msgspec.msgpack.encode([1, 2])), 400, "invalid envelope"),
    "followed by other data": (FrameSender().body(gpu_frames(FrameSender())) + b"x", 400, "followed by other data"),
    "a bomb": (MAGIC + zstd.compress(bytes(50_000_000)), 400, "at most 1000000 bytes"),
    "too large": (bytes(300_000), 413, "body too large"),
    "another version": (
        pack(Envelope(99, "n1", "r", "b")), 426, "envelope version: 99: expected 2"
    ),
    "another node": (FrameSender("n2").body(gpu_frames(FrameSender("n2")), schemas=True), 403, "expected 'n1', as in the credential"),
    "a million columns": (
        refused(Shape("gpu", (WireGroup(POWER, (1, 1000), (0,) * 90_000),), *GPU_SLOT)),
        422, "90000 columns: expected at most 20000",
    ),
    "more columns than configured": (
        refused(Shape("gpu", (WireGroup(POWER, (1, 1000), (0,) * 9_000),), *GPU_SLOT)),
        422, "at most 50 columns",
    ),
    "column without a slot": (
        refused(Shape("gpu", (WireGroup(POWER, (1, 1000), (5,)),), *GPU_SLOT)),
        422, "column without a slot",
    ),
    "slot without a name": (
        refused(Shape("gpu", (), (Slot("gpu", 1),), (-1,))), 422, "slot without a name",
    ),
    "a slot of the build with a name": (
        refused(Shape("gpu", (), (Slot("gpu", -1),), ())), 422, "slot gpu: expected gpu",
    ),
    "a name of two lengths": (
        refused(Shape("gpu", (), (Slot("gpu", 0), Slot("nvlink", 0)), (-1,))), 422, "has two lengths",
    ),
    "a rail of a million": (
        refused(Shape("gpu", (), (Slot("gpu", 0),), (10**6,))), 422, "invalid rail",
    ),
    "too many GPUs": (
        refused(Shape("gpu", (), tuple(Slot("gpu", n) for n in range(300)), (-1,) * 300)),
        422, "expected at most 50 columns and slots",
    ),
    "a line break in a name": (
        refused(names=(WireEntity("gpu", ("G\nx",)),)), 422, "expected printable characters",
    ),
    "too many names": (
        refused(names=(WireEntity("gpu", ("G",)),) * 4097), 422, "length <= 4096",
    ),
    "names of too many bytes": (
        refused(names=tuple(WireEntity("gpu", (f"{n:04}" + "G" * 200,)) for n in range(2000))),
        422, "expected at most 262144",
    ),
    "a scale of nothing": (
        refused(Shape("gpu", (WireGroup("railscope_unknown", (1, 0), (0,)),), *GPU_SLOT)),
        422, "expected positive integers",
    ),
    "another catalog": (
        refused(Shape("gpu", (WireGroup(POWER, (1, 1), (0,)),), *GPU_SLOT)),
        422, "run the same version of agent and collector",
    ),
    "names of another shape": (
        misfit((WireEntity("gpu", ("G",)),) * 2), 422, "2 rows: expected 1",
    ),
    "names of another length": (misfit((WireEntity("gpu", ("G", "0")),)), 422, "with 2 labels"),
    "a GPU without a name": (misfit((WireEntity("gpu", ()),)), 422, "with 0 labels"),
}  # fmt: skip


async def test_malicious_and_damaged_bodies_are_rejected_and_change_nothing(tmp_path: Path):
    limits = msgspec.structs.replace(SMALL, requests_per_second=10_000)
    async with run_collector(settings_in(tmp_path, limits=limits)) as running:
        for name, (body, expected, text) in REFUSALS.items():
            status, reply = await running.post(body)
            assert (status, text in reply["error"]) == (expected, True), (name, reply)
        assert sum(running.collector.core.counts.rejected.values()) == len(REFUSALS)
        assert not running.collector.core.fleet.nodes
        good = FrameSender()
        assert (await running.post(good.body(gpu_frames(good), schemas=True)))[0] == 200
    assert logged_envelopes(tmp_path) == 1


async def test_a_content_encoding_is_not_decoded(tmp_path: Path):
    """A broken one is an invalid body, not an error of the server with a stack trace for each request."""
    async with run_collector(settings_in(tmp_path)) as running:
        for encoding in ("gzip", "br"):
            headers = {"Content-Encoding": encoding}
            status, reply = await running.post(b"broken", headers=headers)
            assert (status, "which starts with" in reply["error"]) == (400, True), reply
        assert running.collector.core.counts.rejected == {"format": 2}


async def test_batches_with_contradictory_parts_are_rejected(tmp_path: Path):
    sender = FrameSender()
    envelope = sender.envelope(gpu_frames(sender), schemas=True)
    batch = envelope.batches[0]
    fields = {name: getattr(batch, name) for name in batch.__struct_fields__}
    lies: list[dict[str, Any]] = [
        {"base": batch.base + bytes(8)}, {"steps": b""}, {"first_sequence": 0}, {"boot_ns": ()},
        {"wall_ns": (), "boot_ns": ()}, {"reasons": b"\1"}, {"changed": b"\xff\xff"},
        {"stream": "host"}, {"wall_ns": batch.wall_ns * 100, "boot_ns": batch.boot_ns * 100},
    ]  # fmt: skip
    async with run_collector(settings_in(tmp_path)) as running:
        for lie in lies:
            made = type(batch)(**fields | lie)
            forged = msgspec.structs.replace(envelope, batches=(made,))
            status, _ = await running.post(pack(forged))
            assert status == 400, lie
        assert running.collector.core.counts.frames == 0


async def test_clocks_that_cannot_be_are_rejected(tmp_path: Path):
    sender = FrameSender()
    ahead = sender.body(gpu_frames(sender, at=5000), schemas=True)
    async with run_collector(settings_in(tmp_path)) as running:
        status, reply = await running.post(ahead, at=10)
        assert (status, "invalid boot clock" in reply["error"]) == (422, True)
        status, reply = await running.post(sender.body(gpu_frames(sender)), at=40 * 86_400)
        assert (status, "older than 30 days" in reply["error"]) == (422, True)
        body = sender.body(gpu_frames(sender))
        status, reply = await running.post(body, headers={SENT_HEADER: "yesterday"})
        assert (status, "expected wall clock" in reply["error"]) == (400, True)


async def test_frames_of_another_boot_reach_no_further_back_than_others(tmp_path: Path):
    sender = FrameSender()
    envelope = sender.envelope(gpu_frames(sender), schemas=True)
    batch = envelope.batches[0]
    assert batch.rows > 1
    late = (*batch.boot_ns[:-1], batch.boot_ns[-1] + 90 * 86_400 * 10**9)
    batches = (msgspec.structs.replace(batch, boot_ns=late),)
    forged = msgspec.structs.replace(envelope, boot_id="the one before", batches=batches)
    async with run_collector(settings_in(tmp_path)) as running:
        status, reply = await running.post(pack(forged))
        assert (status, "older than 30 days" in reply["error"]) == (422, True), reply


async def test_a_flood_in_one_envelope_is_rejected(tmp_path: Path):
    limits = IngestLimits(batches_per_envelope=3, events_per_envelope=2, gaps_per_stream=2)
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path, limits=limits)) as running:
        frames = [frame for n in range(8) for frame in gpu_frames(sender, at=2 * n, rows=1)]
        status, reply = await running.post(sender.body(frames[::2], schemas=True))
        assert (status, "4 batches: expected" in reply["error"]) == (422, True)
        for frame in frames[:6:2]:
            assert (await running.post(sender.body([frame], schemas=True)))[0] == 200
        status, reply = await running.post(sender.body(frames[6:7]))
        assert (status, "3 gaps" in reply["error"]) == (422, True)


async def test_clocks_beyond_all_bounds_are_rejected(tmp_path: Path):
    async with run_collector(settings_in(tmp_path)) as running:
        for header in ("9" * 400 + " 5 b", "1 " + "9" * 19 + " b", "-1 5 b"):
            status, _ = await running.post(FrameSender().body([]), headers={SENT_HEADER: header})
            assert status == 400
        await running.collector.refresher.refresh()


async def test_tokens_decide_which_clients_may_send_and_read(tmp_path: Path):
    sender = FrameSender()
    body = sender.body(gpu_frames(sender), schemas=True)
    async with run_collector(settings_in(tmp_path)) as running:
        for wrong in ("", "Bearer", "Bearer wrong", "Basic token-n1"):
            status, reply = await running.post(body, headers={"Authorization": wrong})
            assert (status, "missing credential" in reply["error"]) == (401, True)
        status, reply = await running.post(body, headers={"Authorization": "Bearer token-reader"})
        assert (status, reply["error"]) == (
            403,
            "access denied: not for credentials of role operator",
        )
        assert running.collector.core.counts.rejected == {"token": 4, "role": 1}
        for path in ("/metrics", "/api/v1/nodes", "/api/v1/account", "/api/v1/nodes/n1"):
            assert (await running.get(path, token="token-n1"))[0] == 403  # noqa: S106 - a test's token
        assert (await running.get("/-/healthy", token=""))[0] == 200
        assert (await running.get("/metrics"))[0] == 200


async def test_a_node_that_sends_too_often_must_wait(tmp_path: Path):
    sender = FrameSender()
    body = sender.body(gpu_frames(sender), schemas=True)
    limits = IngestLimits(requests_per_second=0.5)
    async with run_collector(settings_in(tmp_path, limits=limits)) as running:
        statuses = [(await running.post(body))[0] for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        assert (await running.post(FrameSender("n2").body([]), node="n2"))[0] == 200, (
            "others are not held up"
        )


async def test_shapes_that_one_node_sends_first_are_bounded(tmp_path: Path):
    async with run_collector(settings_in(tmp_path)) as running:
        statuses = []
        for number in range(66):
            shape = Shape("gpu", (), (Slot("unknown", -1, (str(number),)),), ())
            body = pack(Envelope(VERSION, "n1", "r", "b", (encode_part(shape),)))
            statuses.append((await running.post(body))[0])
        assert statuses == [200] * 64 + [429] * 2
        names = pack(Envelope(VERSION, "n1", "r", "b", (), (encode_part(()),)))
        assert (await running.post(names))[0] == 200, "names are not held up"


def test_the_bound_on_shapes_is_one_of_a_day():
    """Otherwise the frames of a node with frequent changes would be rejected one day."""
    day_ns, sender = 24 * 3600 * 10**9, NodeSender().shapes
    assert sender.fits(5, 5, 10 * day_ns)
    sender.count += 5
    assert not sender.fits(1, 5, 11 * day_ns - 1)
    assert sender.fits(1, 5, 11 * day_ns)
    assert not sender.fits(6, 5, 11 * day_ns)
