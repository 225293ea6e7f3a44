"""Answers of NVML and of the ethtool interface, recorded from a simulated node with 8 GPUs and 10 NICs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from simulator import NodeSpec, moments

_DRIVERS = ("nvml.", "ethtool.")


def write_answers(path: Path, seconds: int) -> None:
    """Write one dictionary per second: every call, by its key, with its answer."""
    state: dict[str, Any] = {}
    kept = []
    for moment in moments(NodeSpec(node="bench-node", seed=7, scenario="training"), seconds):
        state.update(moment.calls)
        kept.append({key: state[key] for key in state if key.startswith(_DRIVERS)})
    path.write_bytes(msgspec.msgpack.encode(kept))
