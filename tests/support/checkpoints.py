"""Checkpoints of a core that nobody changes meanwhile."""

from __future__ import annotations

from typing import Any

from collector.state.checkpoint import MAGIC, decode, encode, parts_of, resume
from collector.state.core import Core


def checkpoint_of(core: Core) -> bytes:
    """The whole checkpoint as it lies in a file."""
    return MAGIC + b"".join(map(encode, parts_of(core, 1)))


def resume_from(core: Core, content: bytes) -> None:
    """Start an empty core from it."""
    resume(core, decode(content))


def facts_of(core: Core) -> tuple[Any, ...]:
    """All that the evidence in memory holds."""
    book = core.evidence
    return book.gpus, book.chunks, book.unwritten
