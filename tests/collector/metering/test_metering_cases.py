"""Worked examples of the rule that decides which claim holds a GPU, one file each."""

from __future__ import annotations

import tomllib
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.metered import tile

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.metering.overlaps import find_overlaps
from railscope_collector.metering.units import Tiling

S = 1_000_000_000
CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


def evidence(case: dict[str, Any], device: int) -> Evidence:
    """The claims of a case on one of its GPUs."""
    claims = []
    for one in case["claims"]:
        if device not in one.get("devices", [0]):
            continue
        share = one.get("share")
        claims.append(
            MeteredClaim(
                ClaimAuthority[one.get("level", "scheduler").upper()],
                one["start"] * S,
                one["id"],
                one["id"],
                one["end"] * S,
                exclusive=share is None,
                system=one.get("system", False),
                share=Fraction(share) if share else None,
            )
        )
    return Evidence(f"GPU-{device}", (NodeStay(0, "n1"),), tuple(claims))


@pytest.mark.parametrize("tiling", Tiling)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, tiling: Tiling) -> None:
    case = tomllib.loads(path.read_text())
    gpu_second = GPU_CAPACITY * S
    held: Counter[str] = Counter()
    moved: Counter[tuple[str, ...]] = Counter()
    for device in range(case["gpus"]):
        known = evidence(case, device)
        for entry in tile(known, 0, case["seconds"] * S):
            if entry.tiling is tiling:
                held[entry.claim] += Fraction(entry.quantity) / gpu_second
        for overlap in find_overlaps(known):
            if overlap.tiling is tiling:
                key = (overlap.claim, overlap.other, overlap.kind.value, str(overlap.ratio))
                moved[key] += Fraction(overlap.quantity) / gpu_second
    expected = {"": case["free"], **case["held"]}
    assert held == {name: Fraction(size) for name, size in expected.items() if Fraction(size)}
    assert moved == {
        (one["claim"], one["other"], one["kind"], one.get("ratio", "1")): Fraction(one["quantity"])
        for one in case.get("moved", ())
    }


def test_every_case_is_found() -> None:
    assert len(CASES) >= 10
