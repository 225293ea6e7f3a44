"""Detectors of links: bit errors, interruptions, speed, and NICs that have left the bus.

A port may be down by design: a NIC counts as down only if it was up before, or if it is of a rail
and its peers on the same rail are up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.jobs import MIN_PEERS
from railscope_collector.diagnosis.network_detectors import MIN_UNPROTECTED, loaded_nics
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats, Positions, median, or_zero

BEFORE_SLOTS = 18
"""Slots in which a link must have been up, or must have carried traffic, to count as down."""


def link_faults(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield faults of links."""
    yield from _bit_errors(view)
    yield from _outages(view)
    yield from _speeds(view)
    yield from _transmit_errors(view)


MIN_BIT_ERRORS, CERTAIN_BIT_ERRORS, CRITICAL_BIT_ERRORS = 1e-6, 1e-5, 1e-4
"""Bit error rates before correction. From the first a transceiver may be degraded, and from the second it is, whatever its peers have.
From the third an incident is critical.
"""
BIT_ERROR_FACTOR, CERTAIN_FACTOR = 30.0, 3.0
"""A degraded transceiver has this many times the bit errors of its peers and its past. The second suffices from `CERTAIN_BIT_ERRORS` on."""
CRITICAL_UNCORRECTED = 0.05
"""Uncorrected symbol errors per second from which on an incident is critical."""


def _bit_errors(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    nic = view.signals.nic
    errors, lost = nic["bit_errors"], nic["uncorrected_symbols"]
    # A receiver counts symbols beyond correction while a link drops and trains.
    outages = view.signals.table(DeviceKind.NIC, OUTAGE_SLOTS)["link_downs"]
    is_lossy = findings.above(lost, CRITICAL_UNCORRECTED) & ~findings.above(outages, 0.5)
    if not (is_lossy | findings.above(errors, MIN_BIT_ERRORS)).any():
        return
    peers, _ = view.groups.leaf_peers(errors, np.ones(len(nic), np.bool_))
    usual = np.fmax(or_zero(peers), or_zero(view.base(DeviceKind.NIC, "bit_errors")))
    limit = np.fmin(
        np.fmax(BIT_ERROR_FACTOR * usual, MIN_BIT_ERRORS),
        CERTAIN_BIT_ERRORS,
    )
    limit = np.fmax(limit, CERTAIN_FACTOR * usual)  # cables of one kind may all have that many
    hit = findings.above(errors, limit) | is_lossy
    of_errors = findings.Compared("bit_errors", errors, limit, "peers and baseline")
    of_lost = findings.Compared("uncorrected_symbols", lost, CRITICAL_UNCORRECTED)
    for position in np.flatnonzero(hit).tolist():
        critical = errors[position] > CRITICAL_BIT_ERRORS or is_lossy[position]
        yield findings.Finding(
            "transceiver_degraded",
            findings.Cause("nic", position),
            of_errors.of_nics(view, [position]) + of_lost.of_nics(view, [position]),
            severity="critical" if critical else "",
        )


def _outages(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield links that came back, links that stay down, and NICs that are gone."""
    outages = view.signals.table(DeviceKind.NIC, OUTAGE_SLOTS)["link_downs"]
    if findings.above(outages, 0.5).any():
        yield from _flaps(view, outages)
    if (view.signals.nic["link_up"] == 0).any():
        yield from _links_down(view)
    yield from _lost_nics(view)


RELOAD_SHARE = 0.7
"""Share of a node's NICs; if as many flap at once, the driver was loaded again or the node restarted."""


def _flaps(view: findings.DiagnosisView, outages: Floats) -> Iterator[findings.Finding]:
    """Yield links that came back, by the times that they went down in the slots of an outage."""
    now = view.signals.nic
    was_down = _was_down(view)
    counted = np.where(was_down, outages, now["link_downs"])
    downs = findings.above(counted, 0.5)
    downs_before = view.signals.table(DeviceKind.NIC, view.signals.window - 1, 1)["link_downs"]
    returned = was_down | findings.above(downs_before, 0.5)
    # A slot of which the link is up for a part may end with the link down.
    is_up = (now["link_up"] == 1) | ((now["link_up"] > 0) & returned)
    groups, nodes = view.groups, len(view.devices.node_names)
    of_node = np.bincount(groups.nic_node, minlength=nodes)
    flapped = np.bincount(groups.nic_node[downs], minlength=nodes)
    reloads = (flapped >= RELOAD_SHARE * of_node) & (flapped > 1)
    # A driver is loaded again once: links that go down again and again flap, all of a node as well.
    if reloads.any():
        downs_of_minutes = view.signals.table(DeviceKind.NIC, REPEAT_SLOTS)["link_downs"]
        repeated = groups.nic_node[findings.above(downs_of_minutes, 2.5)]
        reloads &= np.bincount(repeated, minlength=nodes) < RELOAD_SHARE * of_node
    # Up again, or counted while the interface does not state its carrier.
    flaps = downs & (is_up | np.isnan(now["link_up"])) & ~reloads[groups.nic_node]
    for position in np.flatnonzero(flaps).tolist():
        slots = OUTAGE_SLOTS if was_down[position] else view.signals.window
        compared = findings.Compared("link_downs", counted, 0.0, slots=slots)
        yield findings.Finding(
            "link_flap",
            findings.Cause("nic", position),
            compared.of_nics(view, [position]),
            onset_ns=_first_down_ns(view, position, slots),
        )


LEAF_SHARE = 0.7
"""Share of the NICs below a leaf that are down if the leaf itself is."""


def _links_down(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield links that are down, of those that were up before or whose peers are."""
    groups, now = view.groups, view.signals.nic
    earlier = view.signals.table(DeviceKind.NIC, BEFORE_SLOTS, 1)
    was_up = findings.above(np.fmax(earlier["send"], earlier["receive"]), 0.0)
    was_up |= (groups.is_rail & _was_up(view)) | _reported_down(view)
    peers_up = np.zeros(len(now), np.bool_)
    for members in groups.leaves:
        others_up = int(findings.above(now["link_up"][members], 0.0).sum())
        peers_up[members] = others_up >= 2  # noqa: PLR2004 - more than one peer
    is_role = groups.is_rail & peers_up
    down = (now["link_up"] == 0) & (was_up | is_role)
    for leaf, members in enumerate(groups.leaves):
        of_leaf = members[down[members]]
        several = len(np.unique(groups.nic_node[of_leaf])) > 1
        count = int((~np.isnan(now["link_up"][members])).sum())
        if several and len(of_leaf) >= MIN_PEERS and len(of_leaf) >= LEAF_SHARE * count:
            down[of_leaf] = False
            evidence = findings.Compared("link_up", 0.0, 1.0, "before").of_nics(view, of_leaf)
            cause = findings.Cause("leaf", leaf, groups.leaf_names[leaf])
            yield findings.Finding("link_down", cause, evidence, parts=tuple(of_leaf.tolist()))
    for position in np.flatnonzero(down).tolist():
        # A port that was never up may be unused by design.
        comparison, severity = ("before", "") if was_up[position] else ("peers", "info")
        evidence = findings.Compared("link_up", 0.0, 1.0, comparison).of_nics(view, [position])
        cause = findings.Cause("nic", position)
        yield findings.Finding("link_down", cause, evidence, severity=severity)


REPEAT_SLOTS = 18
"""Slots in which a link that goes down three times flaps, whatever the other links of its node do."""
OUTAGE_SLOTS = 10
"""Slots in which a link that is up again may have gone down: those after which it is reported as down, and a window."""


def _was_down(view: findings.DiagnosisView) -> findings.Flags:
    """Return the links that were down in a slot of the window."""
    slots = view.signals.slots(DeviceKind.NIC, view.signals.window)
    found: findings.Flags = (slots["link_up"] == 0).any(axis=0)
    return found


def _was_up(view: findings.DiagnosisView) -> findings.Flags:
    """Return the links that were up in one of the last slots, although they may be down since."""
    slots = view.signals.slots(DeviceKind.NIC, BEFORE_SLOTS - 1, 1)
    found: findings.Flags = np.any(slots["link_up"] > 0, axis=0)
    return found


def _reported_down(view: findings.DiagnosisView) -> findings.Flags:
    """Return the links with an incident that they are down: it lasts until they are up."""
    found = np.zeros(len(view.devices.nics), np.bool_)
    for (name, cause), fault in view.open_faults.items():
        if name == "link_down" and (cause.kind != "nic" or fault.severity != "info"):
            found[[cause.position] if cause.kind == "nic" else [*fault.parts]] = True
    return found


def _first_down_ns(view: findings.DiagnosisView, position: int, slots: int) -> int:
    """Return the end of the first of the last slots in which a link went down."""
    downs = view.signals.slots(DeviceKind.NIC, slots)["link_downs"][:, position]
    counted = np.flatnonzero(downs > 0)
    first = slots - 1 - int(counted[0]) if len(counted) else 0
    return view.timestamp_ns - first * findings.SLOT_NS


LOST_SLOTS, LOST_BEFORE_SLOTS = 3, 12
"""Slots in which a node reports other NICs without one that has left, and those before them in which it reported that one."""
REPORTED_BY = ("link_up", "port_up", "rdma_received_bytes", "port_received_bytes")
"""Quantities by which a NIC is reported: carrier, port, driver and RDMA counters are read by sources with periods of their own."""


def _lost_nics(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs that a source of a node no longer reports while it reports others."""
    groups, sums, slot = view.groups, view.devices.sums[DeviceKind.NIC], view.signals.slot
    now = view.signals.table(DeviceKind.NIC, LOST_SLOTS)
    gone = np.isnan(now["link_up"]) & np.isnan(now["receive"]) & np.isnan(now["pause_frames"])
    if gone.any():
        are_missed = np.zeros_like(gone)
        for name in filter(sums.has_readings, REPORTED_BY):
            of_others = groups.nic_node[~np.isnan(sums.rate(name, slot, LOST_SLOTS))]
            was_reported = ~np.isnan(sums.rate(name, slot - LOST_SLOTS, LOST_BEFORE_SLOTS))
            are_missed |= was_reported & np.isin(groups.nic_node, of_others)
        gone &= are_missed
    gone |= sums.last("device_gone", slot, 6) > 0
    if gone.any() and view.jobs:
        # Maintenance resets NICs of nodes without a job: those that are back within two minutes were not lost.
        minutes = view.signals.slots(DeviceKind.NIC, 2 * findings.SLOTS_PER_MINUTE)
        busy = [view.devices.nodes[name].position for job in view.jobs for name in job.nodes]
        gone &= np.isnan(minutes["link_up"]).all(axis=0) | np.isin(groups.nic_node, busy)
    compared = findings.Compared("link_up", np.nan, 1.0, "before")
    yield from findings.of_devices(view, DeviceKind.NIC, "nic_lost", gone, compared)


LOW_SPEED = 0.9
"""Share of the usual speed below which a link is slow."""


def _speeds(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield links that are slower than they were, or than those of the same role of their node."""
    nic = view.signals.nic
    speed = np.where(nic["link_up"] > 0, nic["link_speed"], np.nan)
    before = view.signals.table(DeviceKind.NIC, BEFORE_SLOTS, view.signals.window)["link_speed"]
    groups = view.groups
    is_slow = speed < LOW_SPEED * np.fmax.reduce(np.fmax(speed, before), initial=0.0)
    if is_slow.any():
        # The NICs of a node may differ by design, then those of its rail differ in the same way.
        of_rail = _usual(speed, groups.alike_on_rail)
        usual = np.fmax(before, np.fmin(_usual(speed, groups.alike_on_node), of_rail))
        is_slow = speed < LOW_SPEED * usual
        compared = findings.Compared("link_speed", speed, usual, "peers and past")
        yield from findings.of_devices(view, DeviceKind.NIC, "link_speed_low", is_slow, compared)
    for signal in ("pcie_width", "pcie_speed"):
        if not (nic[signal] < 1).any():
            continue
        # A slot may have fewer lanes by design, then the NICs of most nodes have; PCIe of an unused device may
        # save power by a lower speed, and never by fewer lanes.
        of_rail = _usual(nic[signal], groups.alike_on_rail)
        usual = np.fmin(_usual(nic[signal], groups.alike_in_cluster), of_rail)
        narrow = (nic[signal] < 1) & (usual >= 1)
        if signal == "pcie_speed":
            narrow &= loaded_nics(view)
        compared = findings.Compared(signal, nic[signal], 1.0)
        yield from findings.of_devices(view, DeviceKind.NIC, "pcie_degraded", narrow, compared)


def _usual(values: Floats, groups: Iterable[Positions]) -> Floats:
    """Return, for each NIC, the median of its group, if it has at least three that are known."""
    medians = np.full(len(values), np.nan)
    for members in groups:
        present = values[members][~np.isnan(values[members])]
        if len(present) >= MIN_PEERS:
            medians[members] = median(present)
    return medians


def _loses_alone(
    view: findings.DiagnosisView, senders: Positions, position: int, loses: findings.Flags
) -> bool:
    """True if no other sender below a leaf loses packets; below one of two nodes, no other rail of the node."""
    if len(senders) < MIN_PEERS:
        of_node = view.groups.nic_node == view.groups.nic_node[position]
        senders = np.flatnonzero(loaded_nics(view) & of_node & view.groups.is_rail)
    return len(senders) >= MIN_PEERS and int(loses[senders].sum()) == 1


BURST_EVALUATIONS = 6
"""Evaluations that one burst does not fill: a sample of 15 s is in the windows of five."""
MIN_NAKS, NAKS_FACTOR = 0.3, 4.0
"""Negative acknowledgements that a sender with transmit errors receives: per second, and relative to its past."""
STRONG_LOSS_FACTOR = 5.0
"""Losses relative to their limit below which one burst may cause them: then, more evaluations must show them."""
MIN_OUT_OF_ORDER = 0.1
"""Packets out of order per second at another NIC below the leaf that show the losses of such a sender."""


def _transmit_errors(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs with sent packets that are missing at several receivers, while other senders are clean."""
    nic, use = view.signals.nic, loaded_nics(view)
    limit = np.fmax(
        MIN_NAKS,
        NAKS_FACTOR * or_zero(view.base(DeviceKind.NIC, "naks")),
    )
    loses = findings.above(nic["naks"], limit)
    if not loses.any():
        return
    clean = ~findings.above(nic["uncorrected_symbols"], 0.0) & ~findings.above(
        nic["unprotected_share"], MIN_UNPROTECTED
    )
    for members in view.groups.leaves:
        senders = members[use[members]]
        hit = senders[loses[senders] & clean[senders]]
        if len(hit) == 1 and _loses_alone(view, senders, int(hit[0]), loses):
            position = int(hit[0])
            disorder = nic["out_of_order"][members]
            receivers = members[findings.above(disorder, MIN_OUT_OF_ORDER)]
            if len(receivers[receivers != position]):
                compared = findings.Compared("naks", nic["naks"], limit, "peers and baseline")
                strong_limit = STRONG_LOSS_FACTOR * limit[position]
                is_strong = nic["naks"][position] > strong_limit
                yield findings.Finding(
                    "link_transmit_errors",
                    findings.Cause("nic", position),
                    compared.of_nics(view, [position]),
                    min_evaluations=0 if is_strong else BURST_EVALUATIONS,
                )
