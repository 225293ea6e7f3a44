"""The live account of GPUs with many claims, which is not computed on the event loop."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from support.story import (
    SECOND,
    NodeReporter,
    accept,
    at,
    claim_started,
    core_in,
    gpus_of,
    no_turns,
)

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.account.live_account import MAX_CLAIMS_ON_LOOP, LiveAccount
from railscope_collector.evidence.gpu_evidence import AdministratorInputs

GPU = "GPU-0"


@pytest.mark.parametrize("count", [MAX_CLAIMS_ON_LOOP, MAX_CLAIMS_ON_LOOP + 36])
async def test_shares_of_many_claims_are_exact(tmp_path: Path, count: int) -> None:
    core = core_in(tmp_path)
    events = [
        claim_started(GPU, f"c{n}", 10 + n / 10, tenant=f"t{n % 3}", exclusive="false")
        for n in range(count)
    ]
    accept(core, NodeReporter("n1").envelopes_of(gpus_of(GPU), range(10, 41), events={40: events}))
    account = LiveAccount(core.evidence, AdministratorInputs)
    found = await account.refresh(at(40), no_turns)
    assert found.balances
    expected: Counter[str] = Counter()
    for n in range(1, count + 1):
        until = 10 + n / 10 if n < count else 40
        span = round((until - 10 - (n - 1) / 10) * SECOND)
        for tenant in (f"t{k % 3}" for k in range(n)):
            expected[tenant] += Fraction(GPU_CAPACITY * span, n)
    assert {tenant: sum(states.values()) for tenant, states in found.tenants().items()} == expected
    held = account.held_units()
    assert sum(held.values()) == GPU_CAPACITY
    assert account.holders(GPU) == {"t0", "t1", "t2"}


async def test_a_gpu_that_changes_its_holder_is_held_once(tmp_path: Path) -> None:
    core = core_in(tmp_path)
    account = LiveAccount(core.evidence, AdministratorInputs)
    node = NodeReporter("n1")
    held = []
    for first, tenant in ((10, "red"), (40, "blue")):
        events = {first: [claim_started(GPU, tenant, first, tenant=tenant)]}
        accept(core, node.envelopes_of(gpus_of(GPU), range(first, first + 31, 10), events=events))
        await account.refresh(at(first + 30), no_turns)
        held.append(account.held_units())
    assert held == [{"red": GPU_CAPACITY}, {"blue": GPU_CAPACITY}]
