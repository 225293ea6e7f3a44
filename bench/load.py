"""Envelopes of many simulated nodes of one build: real schemas, generated values.

The schemas are those of one agent on a bench host. Every node has its own GPUs; a schema without a
serial number is the same for all nodes. Of the columns 60 % are always zero; of the others counters
grow, and two of three gauges change.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.host_files import write_answers, write_tree
from bench.node import BenchHost
from railscope import __version__, catalog, frame, log_output, wire
from railscope.catalog.declare import MetricKind
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent

ROWS = 10
START_WALL_NS = 1_700_000_000 * SECOND_NS
START_BOOT_NS = 1_000 * SECOND_NS
VARIANTS = 8
DEVICES = 8
_GPU = "GPU-"
_ZERO, _GAUGE = 0.6, 0.87
_FAULTS = re.compile(
    r"railscope_gpu_(row_remap|ecc_errors|throttle|pcie_(link|expected)|device_state)"
)
"""Metrics by which the collector's diagnosis recognizes a faulty GPU: always zero."""

Rows = npt.NDArray[np.int64]


class SourceLoad(msgspec.Struct, frozen=True):
    """The schema of a source, and the number of its frames in an envelope of ten seconds."""

    schema: wire.WireSchema
    rows: int


def streams_of_a_node(directory: Path) -> list[SourceLoad]:
    """Return the streams of one agent at its default periods: about 3,000 values per second."""
    log_output.configure_logs("error")
    write_tree(directory / "tree", DEVICES)
    write_answers(directory / "answers", 2)
    agent = Agent(AgentSettings(node="bench"), BenchHost(directory / "tree", directory / "answers"))
    asyncio.run(agent.once())
    return [
        SourceLoad(
            wire.to_wire_schema(status.frame.schema),
            max(round(ROWS / status.source.period_seconds), 1),
        )
        for status in agent.sampler.statuses.values()
        if status.frame
    ]


def of_node(schema: wire.WireSchema, number: int) -> wire.WireSchema:
    """Return the schema of another node of the same build, with other GPUs."""

    def own_entity(entity: wire.WireEntity) -> wire.WireEntity:
        if not entity.key or not entity.key[0].startswith(_GPU):
            return entity
        key = (f"{_GPU}{number:08x}{entity.key[0][12:]}", *entity.key[1:])
        return wire.WireEntity(entity.kind, key, entity.facts)

    return wire.WireSchema(
        schema.stream, schema.groups, tuple(own_entity(e) for e in schema.entities)
    )


def columns_of(schema: wire.WireSchema) -> int:
    """Return the number of columns of a schema."""
    return sum(len(group.entities) for group in schema.groups)


def counters_of(schema: wire.WireSchema) -> npt.NDArray[np.bool_]:
    """Return a mask of the counter columns."""
    kinds = [
        [catalog.METRICS[group.metric].kind is MetricKind.COUNTER] * len(group.entities)
        for group in schema.groups
    ]
    return np.array([counts for flags in kinds for counts in flags], np.bool_)


def _faults_of(schema: wire.WireSchema) -> npt.NDArray[np.bool_]:
    """Return a mask of the columns that report faults."""
    sizes = [len(group.entities) for group in schema.groups]
    flags = [_FAULTS.match(group.metric) is not None for group in schema.groups]
    return np.repeat(np.array(flags, np.bool_), sizes)


def rows_of(schema: wire.WireSchema, variant: int, turn: int) -> Rows:
    """Return ten rows of values; consecutive turns of one variant continue, and no counter ever falls."""
    counts = counters_of(schema)
    columns = len(counts)
    fixed = np.random.default_rng(variant)
    kind = fixed.random(columns)
    start = fixed.integers(10**6, 10**14, columns)
    speed = np.exp(fixed.uniform(0, 20, columns))
    moving = np.random.default_rng((variant, turn))
    seconds = np.arange(turn * ROWS, turn * ROWS + ROWS)[:, np.newaxis]
    # Each row is shifted by less than a second, so that steps differ and none is negative.
    counters = start + ((seconds + moving.random((ROWS, columns))) * speed).astype(np.int64)
    gauges = start % 100_000 + moving.integers(0, 200, (ROWS, columns))
    rows = np.where(counts, counters, np.where(kind < _GAUGE, gauges, start))
    rows[:, (kind < _ZERO) | _faults_of(schema)] = 0
    return rows


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """A batch without its schema digest: the part that many nodes share."""

    stream: str
    rows: int
    base: bytes
    changed: bytes
    steps: bytes


def pack_rows(rows: Rows) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a batch from rows: base, bitmap of changed columns, and steps."""
    steps = np.diff(rows, axis=0)
    changed = steps.any(axis=0)
    return (
        rows[0].tobytes(),
        np.packbits(changed, bitorder="little").tobytes(),
        np.ascontiguousarray(steps[:, changed].T).tobytes(),
    )


def _piece(stream: SourceLoad, variant: int, turn: int) -> SharedBatch:
    """Return the last rows of a turn as the parts of a batch."""
    rows = rows_of(stream.schema, variant, turn)[-stream.rows :]
    return SharedBatch(stream.schema.stream, len(rows), *pack_rows(rows))


def sample_timestamps(turn: int, rows: int = ROWS) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return wall and boot timestamps of the rows of a turn, the last of them at its end."""
    last, step = turn * ROWS + ROWS - 1, ROWS // rows
    seconds = range(last - step * (rows - 1), last + 1, step)
    return (
        tuple(START_WALL_NS + second * SECOND_NS for second in seconds),
        tuple(START_BOOT_NS + second * SECOND_NS for second in seconds),
    )


class LoadNodes:
    """The nodes of one load, and their requests in each turn; `first` is the number of the first node."""

    def __init__(self, streams: Sequence[SourceLoad], count: int, first: int = 0) -> None:
        self._streams = streams
        self.count, self.first = count, first
        self._common = {
            schema.stream: wire.schema_hash(schema)
            for schema in (stream.schema for stream in streams)
            if not any(entity.key and entity.key[0].startswith(_GPU) for entity in schema.entities)
        }
        self._digests = [self._digests_of(first + number) for number in range(count)]
        self.values_per_turn = sum(s.rows * columns_of(s.schema) for s in streams)
        self.columns = sum(columns_of(stream.schema) for stream in streams)

    def _digests_of(self, number: int) -> dict[str, bytes]:
        node_digests = {
            schema.stream: wire.schema_hash(of_node(schema, number))
            for schema in (stream.schema for stream in self._streams)
            if schema.stream not in self._common
        }
        return self._common | node_digests

    def schemas(self, number: int, digests: Sequence[str]) -> bytes:
        """Return an envelope with the schemas that the collector requests from one node."""
        node_schemas = [of_node(stream.schema, self.first + number) for stream in self._streams]
        requested = [schema for schema in node_schemas if wire.schema_hash(schema).hex() in digests]
        origin_of_node = origin(self.first + number)
        return wire.pack(wire.envelope(origin_of_node, [], requested, agent_version=__version__))

    def bodies(self, turn: int) -> list[bytes]:
        """Return the request body of every node in a turn."""
        pieces = [
            [
                _piece(stream, variant * 100 + position, turn)
                for position, stream in enumerate(self._streams)
            ]
            for variant in range(min(VARIANTS, self.count))
        ]
        return [self._body(n, turn, pieces[n % len(pieces)]) for n in range(self.count)]

    def _body(self, number: int, turn: int, pieces: Sequence[SharedBatch]) -> bytes:
        digests = self._digests[number]
        batches = [
            wire.Batch(
                part.stream,
                digests[part.stream],
                turn * part.rows + 1,
                *sample_timestamps(turn, part.rows),
                part.base,
                part.changed,
                part.steps,
            )
            for part in pieces
        ]
        origin_of_node = origin(self.first + number)
        return wire.pack(wire.envelope(origin_of_node, batches, (), agent_version=__version__))


def name(number: int) -> str:
    """Return the name of a node."""
    return f"bench-{number:05}"


def token(number: int) -> str:
    """Return the token of a node."""
    return f"token-of-{name(number)}"


def origin(number: int) -> frame.FrameOrigin:
    """Return the origin of the frames of a node."""
    return frame.FrameOrigin(name(number), f"{number:016x}", f"boot-{number}")


def head(number: int, turn: int, path: str, content_type: str, size: int) -> bytes:
    """Return the request head of one node."""
    _, boot = sample_timestamps(turn)
    # Correct clocks: a node with a clock offset costs more, as its timestamps are computed again.
    sent = wire.SentAt(time.time_ns(), boot[-1], origin(number).boot_id).to_headers()
    lines = {
        "Host": "bench",
        "Authorization": f"Bearer {token(number)}",
        "Content-Type": content_type,
        "Content-Length": str(size),
        **sent,
    }
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode()


def save(streams: Sequence[SourceLoad], path: Path) -> None:
    """Save the streams for the load generator."""
    path.write_bytes(msgspec.msgpack.encode(streams))


def load(path: Path) -> list[SourceLoad]:
    """Load the saved streams."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[SourceLoad])
