"""`bill overlaps`: what claims requested and others held, with the seconds that moved."""

from __future__ import annotations

import json
from fractions import Fraction

from click.testing import CliRunner

from railscope.claim_terms import ClaimAuthority
from railscope.cli import root
from railscope.timestamps import DAY_NS
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.tables import metadata

S = 1_000_000_000
DAY = 20_000


def claim(name: str, start: int, end: int, **more: object) -> MeteredClaim:
    given: dict = {"authority": ClaimAuthority.SCHEDULER, "id": name, "tenant": f"{name}-tenant"}
    begin = DAY * DAY_NS
    return MeteredClaim(
        **(given | {"start_ns": begin + start * S, "end_ns": begin + end * S} | more)
    )


def test_every_overlap_is_listed_with_the_seconds_it_moved(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = Ledger.open(url, metadata)
    thirds = [
        claim(name, 200, 260, exclusive=False, share=Fraction(1, 2)) for name in ("x", "y", "z")
    ]
    claims = (
        claim("job", 0, 100),
        claim("check", 40, 42, system=True),
        claim("lease", 300, 400, authority=ClaimAuthority.ADMINISTRATOR),
        claim("late", 320, 350),
        *thirds,
    )
    evidence = Evidence("GPU-1", (NodeStay(DAY * DAY_NS, "n1"),), claims=claims)
    ledger.write(
        MeteredGpu.compute(evidence, {}, [(0, "sku")]).day(DAY, MeteringComputation("1", 1))
    )
    ledger.close()
    day = "2024-10-04..2024-10-04"
    outcome = CliRunner().invoke(
        root, ["bill", "overlaps", day, "--ledger", url, "--format", "json"]
    )
    assert outcome.exit_code == 0, outcome.output
    found = {
        (read["claim"], read["kind"]): (read["other_claim"], read["gpu_seconds"], read["ratio"])
        for read in json.loads(outcome.stdout)
    }
    assert found == {
        ("job", "conflict"): ("check", "2", "1"),
        ("late", "override"): ("lease", "30", "1"),
        ("x", "oversubscribed"): ("z", "10", "3/2"),
        ("y", "oversubscribed"): ("z", "10", "3/2"),
        ("z", "oversubscribed"): ("y", "10", "3/2"),
    }
    text = CliRunner().invoke(root, ["bill", "overlaps", day, "--ledger", url]).output
    assert "5 overlaps, 62.000000000 GPU-seconds moved" in text
