"""Checkpoints of a core that does not change meanwhile."""

from __future__ import annotations

from typing import Any

from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpoint import (
    MAGIC,
    decode_parts,
    encode_part,
    make_parts,
    restore_state,
)


def checkpoint_of(core: CollectorState) -> bytes:
    """Return the whole checkpoint as in its file."""
    return MAGIC + b"".join(map(encode_part, make_parts(core, 1)))


def resume_from(core: CollectorState, content: bytes) -> None:
    """Start an empty core from it."""
    restore_state(core, decode_parts(content))


def facts_of(core: CollectorState) -> tuple[Any, ...]:
    """Return all evidence in memory."""
    book = core.evidence
    return book.gpus, book.intervals.by_key, book.unwritten
