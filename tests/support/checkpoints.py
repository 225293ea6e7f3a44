"""Snapshots of a core that does not change meanwhile."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from railscope.timestamps import DAY_NS
from railscope_collector.config import IngestLimits
from railscope_collector.evidence.waiting_evidence import WaitingEvidence
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.snapshot_parts import (
    decode_part,
    encode_part,
    make_parts,
    restore_state,
)
from railscope_collector.state.state_reader import StateReader
from railscope_collector.state.state_snapshots import StateSnapshots
from railscope_collector.state_store import StateStore


def checkpoint_of(core: CollectorState) -> list[bytes]:
    """Return the parts of a whole snapshot as stored."""
    return [encode_part(part) for part in make_parts(core)]


def resume_from(core: CollectorState, parts: list[bytes]) -> None:
    """Start an empty core from it."""
    restore_state(core, map(decode_part, parts))


def facts_of(core: CollectorState) -> tuple[Any, ...]:
    """Return all evidence in memory; not its positions, which a restart knows less exactly."""
    book = core.evidence
    quarters = {
        key: structs.replace(kept, position=0) for key, kept in book.quarters.by_key.items()
    }
    return book.claims.nodes, quarters, book.unwritten.keys()


def state_reader(core: CollectorState, store: StateStore) -> StateReader:
    """Return the reader of a core with its snapshots in an open database."""
    frames = FrameLog(store.directory / "frames", 1 << 20, 1 << 30)
    waiting = WaitingEvidence(store, IngestLimits())
    return StateReader(core, frames, StateSnapshots(store, core, frames, DAY_NS), waiting)
