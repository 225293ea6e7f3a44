"""Verdict on a demo run: every node reported, no frame was lost, the account adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.demo.table import account_table, not_held


def verdict(
    nodes: Sequence[str], shipped: Sequence[Mapping[str, int]], views: Mapping[str, Any]
) -> tuple[bool, str]:
    """Return True if a run succeeded, and a line-by-line report."""
    known = {row["node"] for row in views["nodes"]["rows"] if row["streams"]}
    stale = [node for node in nodes if node not in known]
    sent = sum(counts["shipped"] for counts in shipped)
    lost = sum(counts["dropped"] + counts["waiting"] for counts in shipped)
    received = int(views["own"]["railscope_collector_received_frames_total"])
    missing = int(views["own"]["railscope_collector_missing_frames"])
    account = views["account"]
    parts = (int(account["held_ns"]), *not_held(account).values())
    checks = [
        (not stale, f"every node reported ({len(nodes)} of them)", f"stale: {', '.join(stale)}"),
        (
            lost == missing == 0 and sent == received,
            f"no frame was lost ({received} sent, {received} received)",
            f"frames lost: {sent} sent, {received} received, {lost} dropped, {missing} missing",
        ),
        (
            sum(parts) == int(account["capacity_ns"]) > 0,
            f"the account adds up: {_sum(parts)} = {int(account['capacity_ns']):,} ns",
            "the account does not add up",
        ),
    ]
    lines = [account_table(account), ""]
    lines += [f"{'ok  ' if good else 'FAIL'}  {yes if good else no}" for good, yes, no in checks]
    return all(good for good, _, _ in checks), "\n".join(lines)


def _sum(parts: Sequence[int]) -> str:
    return " + ".join(f"{part:,}" for part in parts)
