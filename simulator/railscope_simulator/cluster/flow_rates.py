"""Rates of RDMA flows in a lossless fabric, and the queues, marks and pause that result from them.

A fluid model in a steady state. The ranks of a collective wait for each other, so all flows of a job have
the same relative speed. Speeds are max-min fair: they grow together until a link or a receiver is
saturated (DCQCN converges there; "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).

A queue stands in front of each saturated resource. A switch marks its packets, and senders that are notified
slow down: the queue stays short, and pause is rare. Where no marks, no notifications or no
reaction limit the senders, the queue fills the buffer, and the switch pauses the ports that feed it, for the
share of time by which the offered rate exceeds the capacity. Pause stops all traffic of a port, also that of
flows to other destinations (head-of-line blocking), and propagates upstream: leaf to spine, spine to the
leaves of other pods, leaf to NIC. A NIC that cannot accept data at line rate pauses its switch port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from railscope_simulator.cluster.fabric_state import FabricRates, FabricState, QueueRates
from railscope_simulator.cluster.topology import ClusterTopology, FloatArray, FlowGroup

_BURST_EXCESS = 0.02
"""Excess of bursts over the mean rate of a receiver; senders that react to marks keep it out of the queue."""

_RESIDUAL_PAUSE = 0.03
"""Share of an excess that still causes pause when senders react to marks: bursts before the reaction."""

_MARKED_SHARE_OF_EXCESS = 0.12
"""Share of packets that a switch marks per excess."""
_LOST_OF_EXCESS, _LOST_AT_FULL_RATE = 0.002, 0.04
"""Share of packets lost per excess where nothing pauses the senders: if they react to marks, and if not."""

_LOST_IN_BURSTS = 3e-6
"""Share of unprotected packets that find no buffer in bursts, without a lasting queue."""
_UNREACHABLE = 1e-3
"""A link with less of its capacity carries nothing."""

_SATURATION_TOLERANCE = 1e-9
_PASSES = 3
"""Passes in which pause of one pass limits the capacities of the next."""


@dataclass(slots=True)
class _Resources:
    """Values for each resource of the fabric: links and receivers."""

    send: FloatArray
    deliver: FloatArray
    drain: FloatArray
    up: FloatArray
    down: FloatArray

    @classmethod
    def zeros(cls, topology: ClusterTopology) -> _Resources:
        """Return zeros."""
        nics, leaves = (topology.nodes, topology.rails), (topology.pods, topology.rails)
        return cls(*map(np.zeros, (nics, nics, nics, leaves, leaves)))

    def flat(self) -> FloatArray:
        """Return all values in one dimension."""
        return np.concatenate([getattr(self, field.name).ravel() for field in fields(self)])

    @classmethod
    def from_flat(cls, topology: ClusterTopology, values: FloatArray) -> _Resources:
        """Return values of one dimension by resource."""
        parts = cls.zeros(topology)
        at = 0
        for field in fields(cls):
            part: FloatArray = getattr(parts, field.name)
            part[:] = values[at : at + part.size].reshape(part.shape)
            at += part.size
        return parts


class FlowSolver:
    """Solves for the rates of flow groups in a topology."""

    def __init__(self, topology: ClusterTopology, groups: Sequence[FlowGroup]) -> None:
        self._topology = topology
        self._groups = groups
        self._usage = np.array([self._usage_of(group).flat() for group in groups])
        self._remote = np.array([self._remote_usage_of(group) for group in groups])
        self._state_key = b""
        self._solved: dict[tuple[int, ...], FabricRates] = {}

    def _usage_of(self, group: FlowGroup) -> _Resources:
        """Return the rate that a group at full speed needs of each resource."""
        usage, rails = _Resources.zeros(self._topology), group.rails
        from_pod = self._topology.pod_of(group.sources)
        to_pod = self._topology.pod_of(group.destinations)
        remote = np.where(from_pod != to_pod, group.weights, 0.0)
        for values, places, amounts in (
            (usage.send, group.sources, group.weights),
            (usage.deliver, group.destinations, group.weights),
            (usage.drain, group.destinations, group.weights),
            (usage.up, from_pod, remote),
            (usage.down, to_pod, remote),
        ):
            total = np.bincount(places, amounts, len(values))
            values[:, rails] = total[:, np.newaxis]
        return usage

    def _remote_usage_of(self, group: FlowGroup) -> tuple[FloatArray, FloatArray]:
        """Return the rates of each NIC to and from other pods, that a group at full speed has."""
        found = np.zeros((2, self._topology.nodes, self._topology.rails))
        from_pod, to_pod = map(self._topology.pod_of, (group.sources, group.destinations))
        remote = np.where(from_pod != to_pod, group.weights, 0.0)
        for values, nodes in zip(found, (group.sources, group.destinations), strict=True):
            total = np.bincount(nodes, remote, len(values))
            values[:, group.rails] = total[:, np.newaxis]
        return found[0], found[1]

    def solve(self, state: FabricState, active: Sequence[int]) -> FabricRates:
        """Return the rates while these groups exchange; those of the present state are cached."""
        key = state.key()
        # Only results of the present state are kept: each change of a fault creates another state, and memory
        # would grow.
        if key != self._state_key:
            self._solved.clear()
            self._state_key = key
        groups = tuple(active)
        if groups not in self._solved:
            self._solved[groups] = self._solve(state, list(groups))
        return self._solved[groups]

    def _solve(self, state: FabricState, active: list[int]) -> FabricRates:
        usage = self._usage[active]
        drain = np.minimum(state.drain, 1.0 - state.stuck)
        capacities = _Resources(state.send, state.deliver, drain, state.up, state.down).flat()
        blocked = _Resources.zeros(self._topology)
        for _ in range(_PASSES):
            capacity = _Resources(
                state.send * (1.0 - blocked.send),
                state.deliver,
                drain,
                state.up * (1.0 - blocked.up),
                state.down * (1.0 - blocked.down),
            ).flat()
            speeds, limits = fair_speeds(usage, capacity)
            # A group requests its full rate of the resources that limit it, and no more than it gets of others.
            offered = speeds @ usage + ((1.0 - speeds)[:, np.newaxis] * usage * limits).sum(axis=0)
            # Relative to the capacity without pause: a queue stands in front of the resource that is slow,
            # and pause of its feeders is the result.
            excess = np.where(
                offered > capacities,
                1.0 - capacities / np.maximum(offered, _SATURATION_TOLERANCE),
                0.0,
            )
            queues = _Resources.from_flat(self._topology, excess)
            # A NIC that accepts less than its link delivers pauses the leaf: the queue is in front of the
            # link.
            queues.deliver = np.maximum(queues.deliver, queues.drain)
            queues.deliver[state.deliver < _UNREACHABLE] = (
                0.0  # a switch drops what it cannot deliver
            )
            bursts = _BURST_EXCESS * _Resources.from_flat(self._topology, speeds @ usage).drain
            blocked = self._propagate(state, queues, bursts, active)
        rates = _Resources.from_flat(self._topology, speeds @ usage)
        receives = rates.drain > 0
        unprotected = queues.deliver * (1.0 - self._of_leaf(state.pauses))
        lost = unprotected * np.where(
            self._notified_share(state), _LOST_OF_EXCESS, _LOST_AT_FULL_RATE
        )
        lost = np.maximum(lost, self._of_leaf(state.drops) * receives)
        all_speeds = np.zeros(len(self._groups))
        all_speeds[active] = speeds
        # `_feedback` adds what the leaf loses of unprotected traffic. `lost` remains as it is: what one
        # sender loses so is not lost by the others that send to the same NIC.
        lost_by_leaf = lost.copy()
        feedback = self._feedback(state, queues, (lost, lost_by_leaf), active)
        remote = np.tensordot(speeds, self._remote[active], axes=1)
        wrong, unanswered = self._misdirected(state, all_speeds, active)
        receiver_stall = np.where(receives, 1.0 - np.minimum(state.drain, 1.0), 0.0)
        return FabricRates(
            all_speeds,
            rates.send,
            rates.deliver,
            pausing=np.maximum(receiver_stall, state.stuck),
            paused=blocked.send,
            misprioritized=np.divide(
                wrong, rates.deliver, out=np.zeros_like(wrong), where=rates.deliver > 0
            ),
            unanswered=unanswered,
            queues=self._queue_rates(state, queues, blocked, lost_by_leaf, remote),
            **feedback,
        )

    def _of_leaf(self, leaves: FloatArray) -> FloatArray:
        """Return the value of its leaf for each NIC."""
        return np.repeat(leaves, self._topology.nodes_per_pod, axis=0)

    def _notified_share(self, state: FabricState) -> FloatArray:
        """Return 1 for receivers that notify their senders of a queue in front of them."""
        return self._of_leaf(state.marks) * state.notifies

    def _propagate(
        self, state: FabricState, queues: _Resources, bursts: FloatArray, active: Sequence[int]
    ) -> _Resources:
        """Return the share of time in which each port is paused by the queues and bursts that it feeds.

        That of `deliver` is the time in which the queue in front of a NIC is at its limit.
        """
        blocked = _Resources.zeros(self._topology)
        pauses, notified_share = self._of_leaf(state.pauses), self._notified_share(state)
        spine_marks = state.marks.max(axis=0)
        up = queues.up * _unlimited(state.marks) * state.pauses
        down = queues.down * _unlimited(spine_marks)
        # Level by level, each for all flows: pause of a level is complete before it reaches the next one.
        paths = [self._path(self._groups[index]) for index in active]
        pauses_of_leaf: list[FloatArray] = []
        for path in paths:
            reaction = notified_share[path.to_nic] * state.reacts[path.from_nic]
            into = np.maximum(
                queues.deliver[path.to_nic] * _unlimited(reaction), state.stuck[path.to_nic]
            )
            into = np.maximum(into, bursts[path.to_nic] * (1.0 - reaction))
            np.maximum.at(blocked.deliver, path.to_nic, into)
            # The queue of a leaf that does not pause is at its limit as well, but stops no sender.
            into *= pauses[path.to_nic]
            pauses_of_leaf.append(into)
            np.maximum.at(blocked.down, path.to_leaf, np.where(path.is_remote, into, 0.0))
        spines = np.maximum(down, blocked.down)
        for path in paths:
            spine = np.where(path.is_remote, spines[path.to_leaf], 0.0)
            np.maximum.at(blocked.up, path.from_leaf, spine)
        leaves = np.maximum(up, blocked.up)
        for path, into in zip(paths, pauses_of_leaf, strict=True):
            protected = 1.0 - state.unprotected[path.from_nic]
            stopped = np.where(path.is_remote, leaves[path.from_leaf], into)
            np.maximum.at(blocked.send, path.from_nic, stopped * protected)
        return blocked

    def _queue_rates(
        self,
        state: FabricState,
        queues: _Resources,
        blocked: _Resources,
        lost: FloatArray,
        remote: FloatArray,
    ) -> QueueRates:
        """Return the state of the queues of the switches."""
        spine_marks = state.marks.max(axis=0)
        return QueueRates(
            remote[0],
            remote[1],
            queues.deliver * self._of_leaf(state.marks) * _MARKED_SHARE_OF_EXCESS,
            lost,
            blocked.deliver,
            queues.up * state.marks * _MARKED_SHARE_OF_EXCESS,
            queues.down * spine_marks * _MARKED_SHARE_OF_EXCESS,
            queues.up * _unlimited(state.marks),
            queues.down * _unlimited(spine_marks),
            blocked.up,
            blocked.down,
        )

    def _feedback(
        self,
        state: FabricState,
        queues: _Resources,
        losses: tuple[FloatArray, FloatArray],
        active: Sequence[int],
    ) -> dict[str, FloatArray]:
        """Return the shares of marked and lost packets to each NIC, and of notified and lost ones from it.

        What the leaf loses of unprotected traffic is added to the second one of `losses`.
        """
        lost, lost_by_leaf = losses
        marked, slowed, retried = (np.zeros_like(state.send) for _ in range(3))
        received_lost = lost.copy()
        deliver = queues.deliver * self._of_leaf(state.marks)
        up, down = queues.up * state.marks, queues.down * state.marks.max(axis=0)
        for path in (self._path(self._groups[index]) for index in active):
            uplink = np.maximum(up[path.from_leaf], down[path.to_leaf])
            share = np.maximum(deliver[path.to_nic], np.where(path.is_remote, uplink, 0.0))
            share *= _MARKED_SHARE_OF_EXCESS
            np.maximum.at(marked, path.to_nic, share)
            np.maximum.at(slowed, path.from_nic, share * state.notifies[path.to_nic])
            overflow = _LOST_IN_BURSTS + _LOST_OF_EXCESS * queues.deliver[path.to_nic]
            unprotected = state.unprotected[path.from_nic] * overflow
            np.maximum.at(lost_by_leaf, path.to_nic, unprotected)
            dropped = np.maximum(lost[path.to_nic], unprotected)
            dropped = np.maximum(dropped, state.leaks[path.from_nic])
            np.maximum.at(retried, path.from_nic, dropped)
            np.maximum.at(received_lost, path.to_nic, dropped)
        return {"marked": marked, "lost": received_lost, "slowed": slowed, "retried": retried}

    def _misdirected(
        self, state: FabricState, speeds: FloatArray, active: Sequence[int]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the rate that each NIC receives in a wrong priority, and 1 for senders to unreachable NICs."""
        wrong, unanswered = np.zeros_like(state.send), np.zeros_like(state.send)
        for index in active:
            path, weights = self._path(self._groups[index]), self._groups[index].weights
            sent = weights[:, np.newaxis] * speeds[index] * state.unprotected[path.from_nic]
            np.add.at(wrong, path.to_nic, sent)
            is_cut = state.deliver[path.to_nic] < _UNREACHABLE
            np.maximum.at(unanswered, path.from_nic, is_cut.astype(np.float64))
        return wrong, unanswered

    def _path(self, group: FlowGroup) -> _Path:
        from_pod = self._topology.pod_of(group.sources)
        to_pod = self._topology.pod_of(group.destinations)
        is_remote = (from_pod != to_pod)[:, np.newaxis]
        return _Path(
            np.ix_(group.sources, group.rails),
            np.ix_(group.destinations, group.rails),
            np.ix_(from_pod, group.rails),
            np.ix_(to_pod, group.rails),
            is_remote,
        )


class _Path(NamedTuple):
    """Indices of the NICs and leaves of flows, of the shape (flows, rails)."""

    from_nic: tuple[NDArray[Any], ...]
    to_nic: tuple[NDArray[Any], ...]
    from_leaf: tuple[NDArray[Any], ...]
    to_leaf: tuple[NDArray[Any], ...]
    is_remote: NDArray[np.bool_]


def _unlimited(reaction: FloatArray) -> FloatArray:
    """Return the share of an excess that reaches the buffer's limit."""
    return 1.0 - (1.0 - _RESIDUAL_PAUSE) * reaction


def fair_speeds(usage: FloatArray, capacity: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the max-min fair speeds of groups, at most 1, and the resources that limit each.

    `usage` (groups, resources) is at full speed; the limits have the same shape.
    """
    # Rounding errors would make a group depend on resources that it does not use.
    usage = np.where(usage > _SATURATION_TOLERANCE, usage, 0.0)
    speeds, limits = np.zeros(len(usage)), np.zeros(usage.shape, dtype=bool)
    growing = np.ones(len(usage), dtype=bool)
    while growing.any():
        need = usage[growing].sum(axis=0)
        left = np.maximum(capacity - speeds[~growing] @ usage[~growing], 0.0)
        levels = np.divide(left, need, out=np.full(len(left), np.inf), where=need > 0)
        level = min(float(levels.min(initial=np.inf)), 1.0)
        speeds[growing] = level
        if level >= 1.0:
            break
        # With a tolerance: resources that are saturated together differ by rounding, and each pass must end
        # the growth of a group.
        saturated = levels <= level * (1.0 + _SATURATION_TOLERANCE) + _SATURATION_TOLERANCE
        limits[growing] = (usage[growing] > 0) & saturated
        growing &= ~limits.any(axis=1)
    return speeds, limits
