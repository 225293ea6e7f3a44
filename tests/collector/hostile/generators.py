"""Well-formed envelopes of a hostile node: each is small on the wire and tries to be large.

A generator takes nothing and returns the bodies of one attack in order; `ATTACKS` has all of them
by name. Bodies are made with the wire format's own encoder, so that only their content is hostile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from support.schemas import parts_of_wire

from railscope.wire import (
    MAGIC,
    VERSION,
    Batch,
    Envelope,
    WireEntity,
    WireEvent,
    WireGroup,
    WireSchema,
    content_hash,
    pack,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NODE, RUN, BOOT = "n1", "run-1", "boot-1"
SECOND = 10**9
START_BOOT_NS = 1_000_000 * SECOND
SENT_SECONDS = 400_000
"""The node's clocks when it sends, after the start: all frames are older."""
START_WALL_NS = time.time_ns() - SENT_SECONDS * SECOND
Bodies = Iterator[bytes]
ATTACKS: dict[str, Callable[[], Bodies]] = {}


def attack(make: Callable[[], Bodies]) -> Callable[[], Bodies]:
    """Register a generator under its name."""
    ATTACKS[make.__name__] = make
    return make


def gpu_schema(gpus: int, stream: str = "gpu") -> WireSchema:
    """One energy counter a GPU."""
    entities = tuple(WireEntity("gpu", (f"GPU-{n}",), {"rail": str(n)}) for n in range(gpus))
    group = WireGroup("railscope_gpu_energy_joules_total", (1, 1000), tuple(range(gpus)))
    return WireSchema(stream, (group,), entities)


def batch(
    schema: WireSchema, rows: int, *, apart: float = 1.0, first: int = 1, **more: Any
) -> Batch:
    """Frames so many seconds apart that never change."""
    columns = sum(len(group.entities) for group in schema.groups)
    moments = [round(row * apart * SECOND) for row in range(rows)]
    given: dict[str, Any] = {
        "wall_ns": tuple(START_WALL_NS + moment for moment in moments),
        "boot_ns": tuple(START_BOOT_NS + moment for moment in moments),
        "base": bytes(8 * columns), "changed": bytes((columns + 7) // 8),
    }  # fmt: skip
    parts = parts_of_wire(schema)
    hashes = content_hash(parts.shapes[0]), content_hash(parts.names[0])
    return Batch(schema.stream, *hashes, first, **(given | more))


def sealed(schemas: tuple[WireSchema, ...], *batches: Batch, run: str = RUN) -> bytes:
    """The body of an envelope."""
    parts = parts_of_wire(*schemas)
    return pack(Envelope(VERSION, NODE, run, BOOT, *map(tuple, parts), batches))


@attack
def frames_far_apart() -> Bodies:
    """10,000 frames of 256 GPUs, each a span of its own."""
    schema = gpu_schema(256)
    yield sealed((schema,), batch(schema, 10_000, apart=31))


def _event(facts: dict[str, str], row: int = 0) -> WireEvent:
    about = WireEntity("claim", ("GPU-0", f"claim-{row}"))
    return WireEvent("claim_start", row, about, START_WALL_NS, START_BOOT_NS, facts)


@attack
def giant_events() -> Bodies:
    """Eight events of 8 MB each, of a few kilobytes on the wire."""
    schema = gpu_schema(1)
    for number in range(8):
        events = (_event({"message": "x" * 8_000_000}),)
        yield sealed((schema,), batch(schema, 1, first=number + 1, events=events))


@attack
def claims_without_end() -> Bodies:
    """As many claims on one GPU as fit, no two alike."""
    schema = gpu_schema(1)
    for number in range(3):
        events = tuple(
            WireEvent(
                "claim_start",
                0,
                WireEntity("claim", ("GPU-0", f"c{number}-{n}")),
                START_WALL_NS + n,
                START_BOOT_NS,
                {"level": "scheduler", "owner": str(n)},
                10_000 * number + n + 1,
            )
            for n in range(10_000)
        )
        yield sealed((schema,), batch(schema, 1, first=number + 1, events=events))


@attack
def large_shapes() -> Bodies:
    """Twenty-five shapes of 20,000 columns, each of a stream of its own."""
    for number in range(25):
        entities = tuple(
            WireEntity("gpu_clock", (f"GPU-{n % 200}", f"{number}-{n}")) for n in range(20_000)
        )
        groups = (WireGroup("railscope_gpu_energy_joules_total", (1, 1000), tuple(range(20_000))),)
        schema = WireSchema(f"s{number}", groups, entities)
        yield sealed((schema,), batch(schema, 1))


@attack
def names_without_end() -> Bodies:
    """The largest lists of names, again and again others."""
    for number in range(25):
        rows = tuple(
            WireEntity("gpu_process", (f"GPU-{n % 200}", f"{number}-{n}")) for n in range(4_096)
        )
        yield sealed((WireSchema("gpu_process", (), rows),))


@attack
def shapes_without_end() -> Bodies:
    """Shapes that differ in one column, many in each envelope."""
    for number in range(10):
        schemas = (gpu_schema(n % 200, f"s{number}-{n}") for n in range(200))
        yield sealed(tuple(schemas))


@attack
def a_bomb_without_its_size() -> Bodies:
    """The same, streamed, so that the frame does not contain its size."""
    compressor = zstd.ZstdCompressor(3)
    pieces = [compressor.compress(bytes(1 << 20)) for _ in range(64)]
    yield MAGIC + b"".join(pieces) + compressor.flush()


@attack
def a_window_of_two_gibibytes() -> Bodies:
    """A frame whose reader would have to hold 2 GiB."""
    header = (0xFD2FB528).to_bytes(4, "little") + bytes([0x00, (31 - 10) << 3])
    yield MAGIC + header + (1 | (16 << 3)).to_bytes(3, "little") + bytes(16)


@attack
def huge_numbers() -> Bodies:
    """The largest numbers that MessagePack has, wherever one is read."""
    schema, huge = gpu_schema(2), (1 << 64) - 1
    base = batch(schema, 1)
    for field in ("first_sequence", "uncertainty_ns", "wall_ns", "boot_ns"):
        value = (huge,) if field.endswith("_ns") and field != "uncertainty_ns" else huge
        yield sealed((schema,), msgspec.structs.replace(base, **{field: value}))
    entity = WireEntity("claim", ("GPU-0", "c"))
    for event in (
        WireEvent("claim_start", huge, entity, 1, 1),
        WireEvent("claim_start", 0, entity, huge, 1),
        WireEvent("claim_start", 0, entity, 1, huge),
        WireEvent("claim_start", 0, entity, 1, 1, {}, huge),
    ):
        yield sealed((schema,), msgspec.structs.replace(base, events=(event,)))
    mig = {"gpu_instance": "9" * 3_999, "profile": "9" * 400 + "g." + "9" * 400 + "gb"}
    entities = (
        WireEntity("gpu", ("GPU-0",), {"model": "9" * 4_000}),
        WireEntity("mig", ("GPU-0", "1"), mig),
    )
    yield sealed((WireSchema("mig", (), entities),))


@attack
def nested_lists() -> Bodies:
    """Lists in lists, a million deep."""
    head = msgspec.msgpack.encode({"version": VERSION, "node": NODE, "run": RUN, "boot_id": BOOT})
    content = b"\x85" + head[1:] + msgspec.msgpack.encode("x") + b"\x91" * 1_000_000
    yield MAGIC + zstd.compress(content, 3)


@attack
def a_new_run_each_time() -> Bodies:
    """Each envelope from an agent that has just been started, on a machine that has just booted."""
    schema = gpu_schema(2)
    for number in range(100):
        parts = map(tuple, parts_of_wire(schema))
        sender = NODE, f"r{number}", f"b{number}"
        yield pack(Envelope(VERSION, *sender, *parts, (batch(schema, 1),)))
