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
from bench.node import BenchHost
from railscope import __version__, catalog, frame, log_output, wire
from railscope.catalog.declare import MetricKind
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings, CollectorLink
from railscope_agent.service import Agent

ROWS = round(CollectorLink().push_seconds)
"""Seconds of an envelope: rows of a source that is read every second."""
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
    """The schema of a source, and how often it is read."""

    schema: wire.WireSchema
    rows: int
    """Frames in an envelope."""
    every: int = 1
    """Turns between two envelopes that contain the source: above 1 if its period is longer than an envelope."""

    @classmethod
    def of_period(cls, schema: wire.WireSchema, seconds: float) -> SourceLoad:
        """Return a source that is read at a period."""
        return cls(schema, max(round(ROWS / seconds), 1), max(round(seconds / ROWS), 1))

    def sequence(self, variant: int, turn: int) -> int | None:
        """Return the first sequence of its frames in a turn; None if it is not read in this turn.

        The first turn has all sources, as that of a new agent. Later the variants of nodes take turns.
        """
        if turn and (turn + variant) % self.every:
            return None
        return ((turn + variant) // self.every - variant // self.every) * self.rows + 1


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
            SourceLoad.of_period(
                wire.to_wire_schema(status.frame.schema), status.source.period_seconds
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
    def values_per_turn(self) -> float:
        """Values of a node in an envelope, as the mean of many."""
        return sum(each.rows * columns_of(each.schema) / each.every for each in self.sources)

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
    """Return the rows of values of one envelope; consecutive turns of one variant continue, and no counter ever falls."""
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


def sample_timestamps(newest_ns: int, rows: int) -> tuple[int, ...]:
    """Return the timestamps of the rows of an envelope, spread over its seconds."""
    step_ns = ROWS * SECOND_NS // rows
    return tuple(newest_ns - step_ns * (rows - 1 - row) for row in range(rows))


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """A batch without its schema digest: the part that many nodes share."""

    stream: str
    first_sequence: int
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

    def shared_batches(self, turn: int) -> list[list[SharedBatch]]:
        """Return the batches of a turn, for each variant of nodes."""
        return [self._batches(each, turn) for each in range(min(VARIANTS, self.load.nodes))]

    def _batches(self, variant: int, turn: int) -> list[SharedBatch]:
        batches = []
        for number, source in enumerate(self.load.sources):
            sequence = source.sequence(variant, turn)
            if sequence is not None:
                rows = self.load.rows(number, variant, turn)
                parts = pack_rows(rows)
                batches.append(SharedBatch(source.schema.stream, sequence, len(rows), *parts))
        return batches

    def frames(self, number: int, shared: Sequence[SharedBatch]) -> bytes:
        """Return an envelope of one node with frames up to now."""
        digests, wall_ns, boot_ns = self._digests[number], time.time_ns(), time.monotonic_ns()
        batches = [
            wire.Batch(
                part.stream,
                digests[part.stream],
                part.first_sequence,
                sample_timestamps(wall_ns, part.rows),
                sample_timestamps(boot_ns, part.rows),
                part.base,
                part.changed,
                part.steps,
            )
            for part in shared
        ]
        return wire.pack(wire.envelope(origin(number), batches, (), agent_version=__version__))


def request(number: int, body: bytes) -> bytes:
    """Return the request of one node, with its clocks at this time."""
    sent = wire.SentAt(time.time_ns(), time.monotonic_ns(), origin(number).boot_id)
    lines = {
        "Host": "bench",
        "Authorization": f"Bearer {token(node_name(number))}",
        "Content-Type": wire.CONTENT_TYPE,
        "Content-Length": str(len(body)),
        **sent.to_headers(),
    }
    text = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {_PATH} HTTP/1.1\r\n{text}\r\n".encode() + body


def _has_gpus(schema: wire.WireSchema) -> bool:
    return any(entity.key and entity.key[0].startswith(_GPU) for entity in schema.entities)


def origin(number: int) -> frame.FrameOrigin:
    """Return the origin of the frames of a node."""
    return frame.FrameOrigin(node_name(number), f"{number:016x}", f"boot-{number}")
