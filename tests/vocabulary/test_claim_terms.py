"""Terms of claims: ranges of slots, and the authorities that a node may report."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from railscope.claim_terms import (
    GPU_CAPACITY,
    MAX_NODE_AUTHORITY,
    ClaimAuthority,
    SlotsError,
    parse_slots,
)
from railscope_agent.gpus.mig_slots import GpuSlotRange
from railscope_agent.tenancy.claims import NodeClaim


@given(st.integers(0, GPU_CAPACITY), st.integers(0, GPU_CAPACITY))
def test_the_notation_of_agents_is_what_collectors_read(low: int, high: int) -> None:
    if low < high:
        assert parse_slots(str(GpuSlotRange(low, high))) == (low, high)
    else:
        with pytest.raises(SlotsError, match="expected START-END such as 0-840"):
            parse_slots(f"{low}-{high}")


@pytest.mark.parametrize(
    "text", ["", "0", "0-", "-0-5", "0-841", "0-5 ", "\u0660-\u0665", "0-" + "9" * 5000]
)
def test_no_other_text_is_a_range(text: str) -> None:
    with pytest.raises(SlotsError) as rejected:
        parse_slots(text)
    assert len(str(rejected.value)) < 120


@pytest.mark.parametrize("level", ClaimAuthority)
def test_no_claim_of_a_node_ranks_above_a_scheduler(level: ClaimAuthority) -> None:
    stored = {"source": "file", "level": int(level), "workload": "", "gpu": "GPU-1"}
    assert msgspec.convert(stored, NodeClaim).authority == min(level, MAX_NODE_AUTHORITY)
