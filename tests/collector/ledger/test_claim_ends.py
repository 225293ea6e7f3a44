"""End of a claim on a GPU that leaves its node and may return: its own, as of each day."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from days import DAY, HOUR, START, held

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.metering.evidence import NodeStay

LEFT, RETURNED = START + 6 * HOUR, START + 2 * DAY_NS + HOUR
AWAY = (NodeStay(LEFT, "node2", RETURNED),)
STAYS = (NodeStay(0, "node1", LEFT), *AWAY, NodeStay(RETURNED, "node1"))


def ends(
    stays: Sequence[NodeStay], claim_end_ns: int = FOREVER_NS, *open_claims: str
) -> list[int | None]:
    """End of the claim on each of four days on which it is named."""
    evidence = held("GPU-1", "acme")
    (claim,) = evidence.claims
    claim = msgspec.structs.replace(claim, node="node1", end_ns=claim_end_ns)
    evidence = msgspec.structs.replace(evidence, stays=tuple(stays), claims=(claim,))
    gpu = MeteredGpu.compute(evidence, {}, open_claims=open_claims)
    days = (gpu.day(DAY + n, MeteringComputation("1", 0)) for n in range(4))
    return [found.end_ns for day in days for found in day.claims]


@pytest.mark.parametrize("open_claims", [(), ("acme-0",)])
def test_a_claim_is_open_while_its_gpu_is_away(open_claims: tuple[str, ...]) -> None:
    observed_ns = START + 4 * DAY_NS if open_claims else FOREVER_NS
    assert ends(STAYS[:2], observed_ns, *open_claims) == [None]
    assert ends(STAYS, observed_ns, *open_claims) == [None, None, None]


def test_a_claim_has_one_end_wherever_its_gpu_is_then() -> None:
    after_ns, away_ns = START + 3 * DAY_NS + HOUR, START + DAY_NS + HOUR
    assert ends(STAYS, after_ns) == [None, None, after_ns]
    assert ends(STAYS, away_ns) == ends(STAYS[:2], away_ns) == [None, away_ns]


def test_an_open_claim_has_not_ended_when_it_was_last_observed() -> None:
    observed_ns = START + DAY_NS + HOUR
    assert ends(STAYS[2:], observed_ns) == []
    stay = (NodeStay(0, "node1"),)
    assert ends(stay, observed_ns) == [None, observed_ns]
    assert ends(stay, observed_ns, "acme-0") == [None, None]
