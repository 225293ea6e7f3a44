"""State of the fabric of a cluster, the rates that result from it, and their sums over a step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from railscope_simulator.cluster.topology import ClusterTopology, FloatArray


@dataclass(slots=True)
class FabricState:
    """Capacities relative to the line rate of a NIC, and settings, at a moment.

    `send`, `deliver` (links of a NIC, to and from the leaf), `drain` (rate at which a NIC accepts data),
    `stuck` (share of time in which it accepts nothing), `notifies` and `reacts` (congestion control of the
    receiver and of the sender, 0 or 1), `unprotected` (share of sent traffic outside the lossless priority),
    `leaks` (share of sent packets that the link to the leaf corrupts): shape (nodes, rails). `up`, `down` (links of a leaf to and from the
    spines), `marks`, `pauses` (ECN and PFC of a leaf, 0 or 1) and `drops` (share of packets that a leaf
    loses): shape (pods, rails).
    """

    send: FloatArray
    deliver: FloatArray
    drain: FloatArray
    stuck: FloatArray
    notifies: FloatArray
    reacts: FloatArray
    unprotected: FloatArray
    leaks: FloatArray
    up: FloatArray
    down: FloatArray
    marks: FloatArray
    pauses: FloatArray
    drops: FloatArray

    @classmethod
    def healthy(cls, topology: ClusterTopology) -> FabricState:
        """Return the state of a fabric without faults."""
        nics, leaves = (topology.nodes, topology.rails), (topology.pods, topology.rails)
        uplink = np.full(leaves, topology.uplinks * topology.nodes_per_pod)
        ones, zeros = np.ones, np.zeros
        return cls(
            ones(nics),
            ones(nics),
            ones(nics),
            zeros(nics),
            ones(nics),
            ones(nics),
            zeros(nics),
            zeros(nics),
            uplink,
            uplink.copy(),
            ones(leaves),
            ones(leaves),
            zeros(leaves),
        )

    def key(self) -> bytes:
        """Return a value that is equal for equal states."""
        return b"".join(getattr(self, field.name).tobytes() for field in fields(self))


@dataclass(slots=True)
class QueueRates:
    """Queues of switches while flow groups exchange; the NICs do not count all of it.

    Per NIC (nodes, rails): `remote_sent` and `remote_received` are the rates that pass the spines, as shares of the line rate;
    `marked` and `lost` are shares of packets that the leaf marks or loses in front of the NIC. Per leaf (pods,
    rails): `up_marked` and `down_marked` are shares of the packets to and from the spines. `full`, `up_full` and `down_full` are shares of time in
    which the queue is at its limit, `up_paused` and `down_paused` those in which the spine pauses the leaf, and the leaf the
    spine.
    """

    remote_sent: FloatArray
    remote_received: FloatArray
    marked: FloatArray
    lost: FloatArray
    full: FloatArray
    up_marked: FloatArray
    down_marked: FloatArray
    up_full: FloatArray
    down_full: FloatArray
    up_paused: FloatArray
    down_paused: FloatArray

    @classmethod
    def zeros(cls, topology: ClusterTopology) -> QueueRates:
        """Return zeros."""
        nics, leaves = (topology.nodes, topology.rails), (topology.pods, topology.rails)
        return cls(*(np.zeros(nics) for _ in range(5)), *(np.zeros(leaves) for _ in range(6)))

    def add(self, rates: QueueRates, share: FloatArray) -> None:
        """Add rates for the share (nodes, 1) of a step in which each node exchanges."""
        pods = len(self.up_full)
        of_leaf = share.reshape(pods, -1).max(axis=1)[:, np.newaxis]
        for name in self.__slots__:
            total: FloatArray = getattr(self, name)
            total += (of_leaf if name.startswith(("up", "down")) else share) * getattr(rates, name)


@dataclass(slots=True)
class FabricRates:
    """Result for flow groups that exchange at the same time.

    `speeds` (groups,): relative to the requested rates. Per NIC (nodes, rails): `send` and `receive` as shares
    of the line rate; `pausing` and `paused` as shares of time in which the NIC pauses the switch, or is paused by
    it; `marked`, `lost` and `misprioritized` (outside the lossless priority) as shares of received packets;
    `slowed` and `retried` as shares of sent packets whose receivers send notifications, or do not receive
    them; `unanswered` is 1 if a receiver cannot be reached.
    """

    speeds: FloatArray
    send: FloatArray
    receive: FloatArray
    pausing: FloatArray
    paused: FloatArray
    marked: FloatArray
    lost: FloatArray
    slowed: FloatArray
    retried: FloatArray
    misprioritized: FloatArray
    unanswered: FloatArray
    queues: QueueRates


@dataclass(slots=True)
class FabricTraffic:
    """Sums over the substeps of a step, weighted with their share of it; shape (nodes, rails)."""

    busy: FloatArray
    send: FloatArray
    receive: FloatArray
    pausing: FloatArray
    paused: FloatArray
    marked: FloatArray
    slowed: FloatArray
    lost: FloatArray
    retried: FloatArray
    misprioritized: FloatArray
    unanswered: FloatArray

    @classmethod
    def zeros(cls, topology: ClusterTopology) -> FabricTraffic:
        """Return zeros."""
        return cls(*(np.zeros((topology.nodes, topology.rails)) for _ in cls.__slots__))

    def add(self, rates: FabricRates, share: FloatArray) -> None:
        """Add the rates of a substep for the share (nodes, 1) of the step in which each node exchanges."""
        self.busy += share * ((rates.send > 0) | (rates.receive > 0))
        for name in self.__slots__[1:]:
            total: FloatArray = getattr(self, name)
            total += share * getattr(rates, name)
