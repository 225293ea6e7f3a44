"""Settings of a drawn cluster, and what its switch ports announce: equal everywhere until a test changes some."""

from __future__ import annotations

from collections.abc import Iterable

from support.drawn_cluster import GPUS, RAILS, DrawnFeed, gpu_uuid, node_name

from railscope.wire import WireEntity

_FACTS = {
    "nic": {"pfc": "3", "trust": "dscp", "mtu": "4200", "firmware": "28.39", "hash": "a1", "dscp_map": "3:26,6:48"},
    "gpu": {"model": "H100", "driver": "590.48.01", "vbios": "96.00"},
    "neighbour": {"pfc": "3", "dscp_map": "3:24-31,6:48", "largest_frame_bytes": "9216"},
}  # fmt: skip


class DrawnSettings:
    """Settings of all nodes."""

    def __init__(self, feed: DrawnFeed) -> None:
        self._feed = feed
        self._changed: dict[tuple[int, str, int], dict[str, str]] = {}
        self._is_begun = False

    def begin(self) -> None:
        """Report the settings of all nodes."""
        self._is_begun = True
        for node in range(self._feed.cluster.nodes):
            self._add(node, 0)

    def change(
        self, kind: str, places: Iterable[tuple[int, int]], facts: dict[str, str], slot: int
    ) -> None:
        """Change facts of NICs, GPUs or neighbours at some places from a slot on."""
        before = {key: dict(each) for key, each in self._changed.items()}
        nodes = set[int]()
        for node, index in places:
            self._changed.setdefault((node, kind, index), {}).update(facts)
            nodes.add(node)
        if self._changed != before and self._is_begun:
            for node in nodes:
                self._add(node, slot)

    def _add(self, node: int, slot: int) -> None:
        cluster, diagnosis = self._feed.cluster, self._feed.diagnosis
        pod = node // cluster.nodes_per_pod
        found = [
            WireEntity("gpu", (gpu_uuid(node, index),), self._facts(node, "gpu", index))
            for index in range(GPUS)
        ]
        for rail in range(RAILS):
            key, leaf = (f"eth{rail}",), cluster.leaf_name.format(pod=pod, rail=rail)
            found += [
                WireEntity("nic", key, {"role": "compute", "driver": "mlx5_core"}),
                WireEntity("nic_settings", key, self._facts(node, "nic", rail)),
                WireEntity(
                    "nic_neighbour", key, {"switch": leaf} | self._facts(node, "neighbour", rail)
                ),
            ]
        time_ns = diagnosis.end_of(slot - 1)
        diagnosis.drift.settings.add(time_ns, node_name(node), found)
        diagnosis.devices.add_entities(diagnosis.devices.node(node_name(node)), found)

    def _facts(self, node: int, kind: str, index: int) -> dict[str, str]:
        return _FACTS[kind] | self._changed.get((node, kind, index), {})
