"""Names of nodes, devices and switches within a story, and those that they have in the cluster of several stories."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

NODES = 6
"""Nodes of a pod."""


@dataclass
class Names:
    """Names of a story whose first node is another one of the cluster."""

    pods: int = 1
    first: int = 0
    shift: int = 0
    """Rail of its NICs of index 0: no two stories of a cluster have their faults on one rail."""

    @property
    def pod(self) -> int:
        """First pod."""
        return self.first // NODES

    def nodes(self, text: str = "*") -> list[int]:
        """Return nodes of a list such as 0,3-5."""
        return numbers(text, self.first, NODES * self.pods)

    def rails(self, text: str) -> list[int]:
        """Return the rails of NICs."""
        return [(number + self.shift) % 8 for number in numbers(text, 0, 8)]

    def places(self, text: str, device: str = "gpu") -> list[tuple[int, int]]:
        """Return nodes and indices of devices such as 1:2 or 0,6:0-3."""
        nodes, _, indices = text.partition(":")
        is_nic = device in {"nic", "neighbour"}
        of = self.rails(indices) if is_nic else numbers(indices, 0, 8)
        return list(product(self.nodes(nodes), of))

    def at(self, text: str, device: str) -> Any:
        """Return the index of devices, or of nodes, in an array of readings."""
        nodes, _, indices = text.partition(":")
        if not indices:
            return self.nodes(nodes)
        of = self.rails(indices) if device == "nic" else numbers(indices, 0, 8)
        return np.ix_(self.nodes(nodes), of)

    def port(self, text: str) -> tuple[tuple[str, str], str]:
        """Return switch, port and queue."""
        switch, _, port = text.partition(":")
        port, _, queue = port.partition("/")
        return (self.actual(switch), f"Ethernet{port}"), queue

    def actual(self, text: str) -> str:
        """Return the name of a leaf or spine in the cluster."""

        def leaf(of: re.Match[str]) -> str:
            return f"leaf-{int(of[1]) + self.pod}-{(int(of[2]) + self.shift) % 8}"

        text = re.sub(r"leaf-(\d)-(\d)", leaf, text)
        return re.sub(r"spine-(\d)", rf"spine-{self.first}-\1", text)

    def local(self, text: str) -> str:
        """Return a text of the cluster with the names of the story."""

        def leaf(of: re.Match[str]) -> str:
            return f"leaf-{int(of[1]) - self.pod}-{(int(of[2]) - self.shift) % 8}"

        text = re.sub(r"leaf-(\d+)-(\d)", leaf, text)
        text = re.sub(r"node-(\d{4})", lambda of: f"node {int(of[1]) - self.first}", text)
        text = re.sub(r"eth(\d)", lambda of: f"eth{(int(of[1]) - self.shift) % 8}", text)
        text = re.sub(r"rail (\d)", lambda of: f"rail {(int(of[1]) - self.shift) % 8}", text)
        text = text.replace(f"spine-{self.first}-", "spine-")
        return re.sub(r"\b(job )?(tenant-)?\d+/(\d)\b", r"job \3", text).replace(" Ethernet", ":")


def numbers(text: str, first: int, count: int) -> list[int]:
    """Return the numbers of a list such as 0,3-5; * is all of them."""
    if text == "*":
        return list(range(first, first + count))
    parts = [part.partition("-") for part in text.split(",") if part]
    return [first + n for low, _, high in parts for n in range(int(low), int(high or low) + 1)]
