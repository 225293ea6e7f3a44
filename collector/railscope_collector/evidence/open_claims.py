"""Claims in force by the reports of nodes, in memory: what holds a GPU now, and the bounds of a node.

The database has every report. Memory keeps the reports of claims in force, and for an hour the ends of others: an
agent repeats a claim for up to an hour after its end, and an end may arrive before its claim. A claim leaves memory
with the report of its end: agents report an end when it is over, so an end in the future is an inexact clock. A
report leaves memory with a later boot of its node that does not repeat it, by the rule of metering
(`day_metering.find_ending_boot`). If the later boot repeats the claim, memory has this report only. It names the
same holder, unless a node reports two different claims under one id.

A node has bounds: above one, its claims are rejected and counted, and those of other nodes are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from railscope.timestamps import FOREVER_NS, HOUR_NS
from railscope_collector.evidence import claim_events, day_metering

MAX_IN_FORCE = 1024
"""Claims of one node in force."""
MAX_IN_FORCE_ON_GPU = 128
"""Limit of these on one GPU: an eighth, as the cost of metering shares grows with the square of their number."""
MAX_ENDS = 1024
"""Ends of one node in memory: an agent repeats at most 1,000 ended claims."""
MAX_REPORTS = 16
"""Different reports of one claim."""
MAX_BOOTS = 16
"""Boots of one node that are remembered, the newest ones."""
_REMEMBERED_NS = HOUR_NS


class ClaimReports(msgspec.Struct, array_like=True):
    """The reports of one claim in force."""

    starts: list[claim_events.ReportedClaim] = []


class ClaimEnd(msgspec.Struct, array_like=True):
    """The end of a claim, its receipt, and the boots whose reports of the claim were received."""

    end_ns: int
    received_ns: int
    boots: list[str] = []


class NodeClaims(msgspec.Struct, array_like=True):
    """Claims of one node in force and recent ends by GPU and id, and first reports of its boots.

    Ends are in the order of their receipt.
    """

    claims: dict[tuple[str, str], ClaimReports] = {}
    ends: dict[tuple[str, str], ClaimEnd] = {}
    boots: dict[str, int] = {}


@dataclass(slots=True)
class OpenClaims:
    """Claims in force of all nodes."""

    nodes: dict[str, NodeClaims] = field(default_factory=dict)

    def problem_of(self, fact: claim_events.ClaimFact, received_ns: int) -> str:
        """Return the reason for which a node's fact is rejected; empty if it is accepted."""
        node = self.nodes.get(fact.node, NodeClaims())
        key = (fact.gpu, fact.id)
        reports, end = node.claims.get(key), node.ends.get(key)
        if isinstance(fact, claim_events.ReportedEnd):
            # The end of a claim in memory is always accepted: the claim would be held and billed without it.
            is_known = reports is not None or end is not None
            return "" if is_known else _find_excess_ends(node, received_ns)
        count = len(reports.starts) if reports else len(end.boots) if end else 0
        if count >= MAX_REPORTS:
            return f"the claim has {MAX_REPORTS} different reports"
        is_counted = reports is not None or end is not None
        if is_counted or fact.end_ns or _is_ended_by_boot(fact, node.boots):
            return ""
        if len(node.claims) >= MAX_IN_FORCE:
            return f"the node has {MAX_IN_FORCE} claims in force"
        # Claims without a device have a bound by node only: their key is no GPU.
        if claim_events.is_gpu(fact.gpu):
            on_gpu = sum(gpu == fact.gpu for gpu, _ in node.claims)
            if on_gpu >= MAX_IN_FORCE_ON_GPU:
                return f"the node has {MAX_IN_FORCE_ON_GPU} claims in force on the GPU"
        return ""

    def add(self, fact: claim_events.ClaimFact, received_ns: int) -> bool:
        """Add a claim or an end; true if it is no repetition."""
        node = self.nodes.setdefault(fact.node, NodeClaims())
        key = (fact.gpu, fact.id)
        if isinstance(fact, claim_events.ReportedEnd):
            return _add_end(node, key, fact.trusted_end_ns, received_ns)
        is_new = False
        if fact.end_ns:
            end_ns = max(fact.end_ns, fact.trusted_from_ns)
            is_new = _add_end(node, key, end_ns, received_ns)
        if end := node.ends.get(key):
            # Of one boot the first report counts. That of another boot shows that the claim outlived its first one.
            if fact.boot not in end.boots:
                end.boots.append(fact.boot)
                is_new = True
            return is_new
        if _is_ended_by_boot(fact, node.boots):
            return True  # the database finds out whether it is a repetition
        reports = node.claims.setdefault(key, ClaimReports())
        is_new = not any(claim_events.is_repetition(start, fact) for start in reports.starts)
        if is_new:
            reports.starts.append(fact)
        return is_new

    def record_boot(self, node_name: str, boot: str, first_ns: int) -> set[str]:
        """Record the first report of a boot; return the GPUs of the claims that it ends."""
        node = self.nodes.setdefault(node_name, NodeClaims())
        known_ns = node.boots.get(boot)
        if known_ns is not None and known_ns <= first_ns:
            return set()
        node.boots[boot] = first_ns
        while len(node.boots) > MAX_BOOTS:
            del node.boots[min(node.boots, key=node.boots.__getitem__)]
        ended: set[str] = set()
        for key, reports in list(node.claims.items()):
            reports.starts[:] = [
                start for start in reports.starts if not _is_ended_by_boot(start, {boot: first_ns})
            ]
            if not reports.starts:
                del node.claims[key]
                ended.add(key[0])
        return ended

    def on_gpu(self, node_name: str, gpu: str) -> Iterator[claim_events.ReportedClaim]:
        """Yield all reports of the claims of a node on a GPU."""
        node = self.nodes.get(node_name)
        for (of_gpu, _), reports in node.claims.items() if node else ():
            if of_gpu == gpu:
                yield from reports.starts

    def without_device(self, node_name: str) -> Iterable[claim_events.ReportedClaim]:
        """Yield the first reports of claims of a node that name no GPU."""
        node = self.nodes.get(node_name)
        for (gpu, _), reports in node.claims.items() if node else ():
            if not claim_events.is_gpu(gpu):
                yield min(reports.starts, key=claim_events.first_report_key)


def _is_ended_by_boot(report: claim_events.ReportedClaim, boots: dict[str, int]) -> bool:
    return day_metering.find_ending_boot([report], boots) < FOREVER_NS


def _find_excess_ends(node: NodeClaims, received_ns: int) -> str:
    """Return the reason for which an end without its claim is rejected; empty if there is room for it."""
    if len(node.ends) < MAX_ENDS:
        return ""
    oldest = next(iter(node.ends.values()))
    is_recent = oldest.received_ns >= received_ns - _REMEMBERED_NS
    return f"the node has {MAX_ENDS} ends within an hour" if is_recent else ""


def _add_end(node: NodeClaims, key: tuple[str, str], end_ns: int, received_ns: int) -> bool:
    """End a claim; true if the end is no repetition. The lowest end counts."""
    if end := node.ends.get(key):
        is_new = end_ns < end.end_ns
        end.end_ns = min(end.end_ns, end_ns)
        return is_new
    reports = node.claims.pop(key, ClaimReports())
    boots = list(dict.fromkeys(start.boot for start in reports.starts))
    node.ends[key] = ClaimEnd(end_ns, received_ns, boots)
    while node.ends:
        oldest = next(iter(node.ends))
        is_old = node.ends[oldest].received_ns < received_ns - _REMEMBERED_NS
        if not is_old and len(node.ends) <= MAX_ENDS:
            break
        del node.ends[oldest]
    return True
