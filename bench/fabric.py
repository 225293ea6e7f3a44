"""A bench host with a fabric: the generated tree, with the RDMA devices of the recorded answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.answers import write_answers
from bench.tree import write_tree

DEVICES = 8
ANSWER_SECONDS = 20
MEGABITS = 400_000
_DRIVER = "ethtool.driver("
_RAIL_DRIVER = "mlx5_core"


@dataclass(frozen=True, slots=True)
class Fabric:
    """Locations of the tree and the answers, and the files that change."""

    root: Path
    answers: Path
    moving: tuple[Path, ...]


def write_fabric(directory: Path) -> Fabric:
    """Write 8 RDMA devices, their network interfaces and the answers of their drivers."""
    root, answers = directory / "fabric", directory / "fabric.msgpack"
    moving = write_tree(root, DEVICES)
    write_answers(answers, ANSWER_SECONDS)
    first = msgspec.msgpack.decode(answers.read_bytes())[0]
    cards = {
        key.removeprefix(_DRIVER).rstrip(")"): answer["bus"]
        for key, answer in first.items()
        if key.startswith(_DRIVER) and answer.get("driver") == _RAIL_DRIVER
    }
    for number, interface in enumerate(sorted(cards, key=lambda name: (len(name), name))):
        _interface(root, interface)
        if number < DEVICES:
            _link(root, f"mlx5_{number}", cards[interface])
    return Fabric(root, answers, tuple(moving))


def _interface(root: Path, interface: str) -> None:
    directory = root / "sys/class/net" / interface
    directory.mkdir(parents=True)
    for file, text in (("speed", MEGABITS), ("carrier", 1), ("carrier_changes", 1)):
        (directory / file).write_text(f"{text}\n", encoding="ascii")


def _link(root: Path, device: str, address: str) -> None:
    place = root / "sys/devices" / address
    place.mkdir(parents=True)
    (root / "sys/class/infiniband" / device / "device").symlink_to(place)
