"""Simulated network ports, and their visible values."""

from __future__ import annotations

from functools import cache

from support.capture_index import index_of

from railscope.capture import Capture, Json
from railscope_simulator import NodeSpec, simulate

SECONDS, ONSET = 120, 60


class CaptureAtOffset:
    """A capture as visible at an offset."""

    def __init__(self, capture: Capture, second: float) -> None:
        self._index = index_of(capture)
        self._offset_ns = round(second * 1e9)

    def call(self, key: str) -> Json:
        return self._index.result_at("calls", key, self._offset_ns)

    def netlink(self, function: str, interface: str) -> Json:
        return self.call(f"netlink.{function}({interface})")

    def file(self, path: str) -> str:
        return str(self._index.result_at("files", path, self._offset_ns)).strip()

    def ofed(self, interface: str, path: str) -> str:
        return self.file(f"/sys/class/net/{interface}/{path}")

    def statistics(self, interface: str) -> dict[str, int]:
        answer = self.call(f"ethtool.statistics({interface})")
        return dict(zip(answer["names"], answer["values"], strict=True))

    def nic_interfaces(self) -> list[str]:
        return [link["name"] for link in self.call("netlink.links()") if link["index"] > 2]


@cache
def run(scenario: str = "training", nic: str = "cx7", node: str = "gpu-001") -> Capture:
    return simulate(NodeSpec(node, scenario=scenario, nic=nic), SECONDS, 5)
