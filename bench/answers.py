"""Answers of NVML and of the ethtool interface, kept from a simulated node.

The simulated server has 8 GPUs and 10 cards; more ports of the same card are added until one tick
has the wished number of values. Each added port counts at rates of its own, or else the copies
would compress to nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from railscope.simulator import NodeSpec, moments

_CARD = "ens1f0np0"
_DRIVERS = ("nvml.", "ethtool.")


def write_answers(path: Path, seconds: int, extra_cards: int) -> None:
    """One dictionary a second: every call, by its key, with its answer."""
    state: dict[str, Any] = {}
    kept = []
    for moment in moments(NodeSpec(node="bench-node", seed=7, scenario="training"), seconds):
        state.update(moment.calls)
        now = {key: state[key] for key in state if key.startswith(_DRIVERS)}
        for number in range(extra_cards):
            card = f"ens{100 + number}f0np0"
            now[f"ethtool.driver({card})"] = state[f"ethtool.driver({_CARD})"]
            original = state[f"ethtool.statistics({_CARD})"]
            own = random.Random(number)  # noqa: S311 - the same rates at every moment
            values = [int(value * own.uniform(0.5, 1.5)) for value in original["values"]]
            now[f"ethtool.statistics({card})"] = {"names": original["names"], "values": values}
        kept.append(now)
    path.write_bytes(msgspec.msgpack.encode(kept))
