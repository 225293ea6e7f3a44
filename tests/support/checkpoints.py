"""Checkpoints of a core that does not change meanwhile."""

from __future__ import annotations

from typing import Any

from collector.state.collector_state import CollectorState
from collector.state.state_checkpoint import MAGIC, decode, encode, parts_of, resume


def checkpoint_of(core: CollectorState) -> bytes:
    """Return the whole checkpoint as in its file."""
    return MAGIC + b"".join(map(encode, parts_of(core, 1)))


def resume_from(core: CollectorState, content: bytes) -> None:
    """Start an empty core from it."""
    resume(core, decode(content))


def facts_of(core: CollectorState) -> tuple[Any, ...]:
    """Return all evidence in memory."""
    book = core.evidence
    return book.gpus, book.intervals.by_key, book.unwritten
