"""Holders of GPUs as text: claims, and the GPU-seconds that each holds.

claim ID FROM-TO key=...     share=FRACTION (`share` alone has none), level, system, gpus (0 if missing), node, mig=1|2 (an instance of 3g.40gb)
stay NODE FROM-TO            node of the GPUs; without it they are in n1
divide SECONDS gpus=COUNT    prints what each claim holds, and what is free
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from support.gpu_evidence import Evidence, NodeStay, timeline_of
from support.stories import Story

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.units import WHOLE, compute_slices

S = 1_000_000_000


def span(text: str) -> tuple[int, int]:
    start, end = text.split("-")
    return int(start) * S, int(end) * S if end else FOREVER_NS


@dataclass
class Played:
    """Claims, and the nodes of the GPUs."""

    claims: list[tuple[set[int], MeteredClaim]] = field(default_factory=list)
    stays: list[NodeStay] = field(default_factory=list)

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        options = dict(word.partition("=")[::2] for word in words if "=" in word or word == "share")
        values = [word for word in words if "=" not in word and word != "share"]
        return getattr(self, name)(*values, **options) or []

    def claim(
        self,
        name: str,
        when: str,
        gpus: str = "0",
        level: str = "scheduler",
        mig: str = "",
        **more: Any,
    ) -> None:
        start, end = span(when)
        share = more.get("share")
        self.claims.append((
            set(map(int, gpus.split(","))),
            MeteredClaim(
                ClaimAuthority[level.upper()], start, name, name, end, node=more.get("node", ""),
                exclusive=share is None, share=Fraction(share) if share else None, system="system" in more,
                compute=compute_slices(3 * (int(mig) - 1), 3) if mig else WHOLE,
            ),
        ))  # fmt: skip

    def stay(self, node: str, when: str) -> None:
        start, end = span(when)
        self.stays.append(NodeStay(start, node, end))

    def divide(self, seconds: str, gpus: str = "1") -> list[str]:
        held = Counter[str]()
        for gpu in range(int(gpus)):
            claims = tuple(claim for on, claim in self.claims if gpu in on)
            stays = tuple(self.stays) or (NodeStay(0, "n1"),)
            known = timeline_of(Evidence(f"GPU-{gpu}", stays, claims))
            for piece in known.pieces(0, int(seconds) * S):
                for part in piece.parts:
                    held[part.claim or "free"] += part.size * (piece.end_ns - piece.start_ns)
        return [
            f"{name} {Fraction(time, GPU_CAPACITY * S)}"
            for name, time in sorted(held.items())
            if time
        ]


def test_holders(story: Story) -> None:
    story.play(Played().run)
