"""The load of a collector: many nodes of one build, with real schemas and generated values.

The schemas are those of one agent on a bench host. Every node has its own GPUs; a schema without a serial number is the same
for all nodes. Of the columns 60 % are always zero; of the others counters grow, and two of three gauges change.
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
from bench.http_requests import Request
from bench.node import BenchHost
from railscope import __version__, catalog, frame, log_output, wire
from railscope.catalog.declare import MetricKind
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent

ROWS = 10
"""Seconds of an envelope: rows of a source that is read every second."""
START_WALL_NS = 1_700_000_000 * SECOND_NS
START_BOOT_NS = 1_000 * SECOND_NS
VARIANTS = 8
DEVICES = 8
_PATH = "/v1/frames"
_GPU = "GPU-"
_ZERO, _GAUGE = 0.6, 0.87
_FAULTS = re.compile(
    r"railscope_gpu_(row_remap|ecc_errors|throttle|pcie_(link|expected)|device_state)"
)
"""Metrics by which the collector's diagnosis recognizes a faulty GPU: always zero."""

Rows = npt.NDArray[np.int64]


class SourceLoad(msgspec.Struct, frozen=True):
    """The schema of a source, and the number of its frames in an envelope."""

    schema: wire.WireSchema
    rows: int


class Load(msgspec.Struct, frozen=True):
    """Nodes with the same sources."""

    sources: tuple[SourceLoad, ...]
    nodes: int = 1

    @classmethod
    def of_agent(cls, directory: Path) -> Load:
        """Return a node with the sources of one agent at its default periods: about 3,000 values per second."""
        log_output.configure_logs("error")
        write_tree(directory / "tree", DEVICES)
        write_answers(directory / "answers", 2)
        host = BenchHost(directory / "tree", directory / "answers")
        agent = Agent(AgentSettings(node="bench"), host)
        asyncio.run(agent.once())
        sources = (
            SourceLoad(
                wire.to_wire_schema(status.frame.schema),
                max(round(ROWS / status.source.period_seconds), 1),
            )
            for status in agent.sampler.statuses.values()
            if status.frame
        )
        return cls(tuple(sources))

    def of_nodes(self, nodes: int) -> Load:
        """Return so many nodes with the same sources."""
        return Load(self.sources, nodes)

    @property
    def columns(self) -> int:
        """Columns of a node."""
        return sum(columns_of(source.schema) for source in self.sources)

    @property
    def values_per_turn(self) -> int:
        """Values of a node in an envelope."""
        return sum(source.rows * columns_of(source.schema) for source in self.sources)

    def rows(self, source: int, variant: int, turn: int) -> Rows:
        """Return the values of a source in a turn, for one of the variants that nodes have."""
        chosen = self.sources[source]
        return rows_of(chosen.schema, variant * 100 + source, turn)[-chosen.rows :]


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"bench-{number:05}"


def token(node: str) -> str:
    """Return the token of a node."""
    return f"token-of-{node}"


# Schemas and values --------------------------------------------------------------------------------


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


def pack_rows(rows: Rows) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a batch from rows: base, bitmap of changed columns, and steps."""
    steps = np.diff(rows, axis=0)
    changed = steps.any(axis=0)
    return (
        rows[0].tobytes(),
        np.packbits(changed, bitorder="little").tobytes(),
        np.ascontiguousarray(steps[:, changed].T).tobytes(),
    )


def sample_timestamps(turn: int, rows: int = ROWS) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return wall and boot timestamps of the rows of a turn, the last of them at its end."""
    last, step = turn * ROWS + ROWS - 1, ROWS // rows
    seconds = range(last - step * (rows - 1), last + 1, step)
    return (
        tuple(START_WALL_NS + second * SECOND_NS for second in seconds),
        tuple(START_BOOT_NS + second * SECOND_NS for second in seconds),
    )


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """A batch without its schema digest: the part that many nodes share."""

    stream: str
    rows: int
    base: bytes
    changed: bytes
    steps: bytes


class Envelopes:
    """The envelopes of a load."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._common = {
            source.schema.stream: wire.schema_hash(source.schema)
            for source in load.sources
            if not _has_gpus(source.schema)
        }
        self._digests = [self._digests_of(number) for number in range(load.nodes)]

    def _digests_of(self, number: int) -> dict[str, bytes]:
        schemas = (source.schema for source in self.load.sources if _has_gpus(source.schema))
        own = {each.stream: wire.schema_hash(of_node(each, number)) for each in schemas}
        return self._common | own

    def schemas(self, number: int, digests: Sequence[str]) -> bytes:
        """Return an envelope with the schemas that the collector requests from one node."""
        schemas = [of_node(source.schema, number) for source in self.load.sources]
        requested = [schema for schema in schemas if wire.schema_hash(schema).hex() in digests]
        return wire.pack(wire.envelope(origin(number), [], requested, agent_version=__version__))

    def bodies(self, turn: int) -> list[bytes]:
        """Return the envelope of every node in a turn."""
        pieces = [
            [self._piece(source, variant, turn) for source in range(len(self.load.sources))]
            for variant in range(min(VARIANTS, self.load.nodes))
        ]
        return [self._body(n, turn, pieces[n % len(pieces)]) for n in range(self.load.nodes)]

    def _piece(self, source: int, variant: int, turn: int) -> SharedBatch:
        rows = self.load.rows(source, variant, turn)
        stream = self.load.sources[source].schema.stream
        return SharedBatch(stream, len(rows), *pack_rows(rows))

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
        return wire.pack(wire.envelope(origin(number), batches, (), agent_version=__version__))

    def request(self, number: int, turn: int, body: bytes) -> Request:
        """Return the request of one node, with its clock at this time."""
        _, boot = sample_timestamps(turn)
        # Correct clocks: a node with a clock offset costs more, as its timestamps are computed again.
        sent = wire.SentAt(time.time_ns(), boot[-1], origin(number).boot_id).to_headers()
        lines = {
            "Host": "bench",
            "Authorization": f"Bearer {token(node_name(number))}",
            "Content-Type": wire.CONTENT_TYPE,
            "Content-Length": str(len(body)),
            **sent,
        }
        text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        return f"POST {_PATH} HTTP/1.1\r\n{text}\r\n".encode(), body


def _has_gpus(schema: wire.WireSchema) -> bool:
    return any(entity.key and entity.key[0].startswith(_GPU) for entity in schema.entities)


def origin(number: int) -> frame.FrameOrigin:
    """Return the origin of the frames of a node."""
    return frame.FrameOrigin(node_name(number), f"{number:016x}", f"boot-{number}")
