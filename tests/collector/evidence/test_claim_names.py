"""One name is one claim: no node ends the claim of another by its choice of an id."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, strategies as st
from support.story import (
    NodeReporter,
    accept,
    account_at,
    at,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
    known_of,
    seconds_of,
)

from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.files import claims_file, tenants_file

GPU, OTHER = "GPU-0", "GPU-9"
BOSS = "tenant,holds,from,to\nboss,GPU-0,2026-09-04T00:00:50Z,2026-09-04T00:03:20Z\n"
CHANGE = (
    "tenant,source,owner,from,to\n"
    "red,slurm,ns,2026-09-04T00:00:00Z,2026-09-04T00:01:40Z\n"
    "blue,slurm,ns,2026-09-04T00:01:40Z,\n"
)
NO_CLAIMS, NO_TENANTS = "tenant,holds,from,to\n", "tenant,source,owner,from,to\n"
IDS = ("j", "j@n2", "j@n1", "j@n2@n2", f"j#{at(100)}", f"j#{at(0)}", f"file/{GPU}/boss/{at(50)}")


async def held(
    directory: Path, mine: dict[int, list], others: dict[int, list], files: AdministratorInputs
) -> dict[tuple[str, str], float]:
    """Seconds by state and tenant of GPU-0, which is in n2, beside what n1 reports."""
    core = core_in(directory)
    envelopes = NodeReporter("n2", "boot-2").envelopes_of(
        gpus_of(GPU), range(0, 301, 5), events=mine
    )
    envelopes += NodeReporter("n1", "boot-1").envelopes_of(
        gpus_of(OTHER), range(0, 301, 5), events=others
    )
    accept(core, sorted(envelopes, key=lambda one: one[0].received_wall_ns))
    owners: dict[str, set[tuple[str, str]]] = {}
    for claim in known_of(core, GPU, files).evidence.claims:
        owners.setdefault(claim.id, set()).add((claim.node, claim.tenant))
    assert all(len(found) == 1 for found in owners.values())
    return seconds_of(await account_at(core, 300, files))


def files_of(claims: str = NO_CLAIMS, tenants: str = NO_TENANTS) -> AdministratorInputs:
    return AdministratorInputs(
        claims_file.parse_claims(claims), tenants_file.parse_tenants(tenants)
    )


attacks = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from([GPU, OTHER, ""]), st.integers(1, 250)),
    max_size=4,
)


@pytest.mark.parametrize(
    "files", [files_of(), files_of(BOSS), files_of(NO_CLAIMS, CHANGE), files_of(BOSS, CHANGE)]
)
@example([("j", GPU, 6), ("j@n2", GPU, 6)])
@example([(f"file/{GPU}/boss/{at(50)}", GPU, 60)])
@given(attacks)
async def test_no_node_moves_time_on_a_gpu_of_another(
    files: AdministratorInputs, attack: list[tuple[str, str, int]]
) -> None:
    mine = {20: [claim_started(GPU, "j", 20, owner="ns")]}
    others: dict[int, list] = {}
    for name, gpu, second in attack:
        place = second // 5 * 5
        more = {"count": "1"} if not gpu else {}
        others.setdefault(place, []).append(claim_started(gpu, name, second, tenant="evil", **more))
        others.setdefault(place + 20, []).append(claim_ended(gpu, name, place + 20))
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        alone = await held(Path(one), mine, {}, files)
        beside = await held(Path(two), mine, others, files)
    drop = {key for key in alone | beside if key[0] in {"idle", "unknown"} or key[1] == "evil"}
    assert {k: v for k, v in beside.items() if k not in drop} == {
        k: v for k, v in alone.items() if k not in drop
    }


@pytest.mark.parametrize("gpu", [GPU, ""])
async def test_a_node_does_not_end_the_administrators_claim_on_its_own_gpu(
    tmp_path: Path, gpu: str
) -> None:
    name, more = f"file/{GPU}/boss/{at(50)}", {"count": "1"} if not gpu else {}
    mine = {
        5: [claim_started(gpu, name, 1, tenant="evil", **more)],
        60: [claim_ended(gpu, name, 55)],
    }
    found = await held(tmp_path, mine, {}, files_of(BOSS))
    assert found["observed", "boss"] == 150


async def test_an_id_like_that_of_a_part_takes_nothing_from_it(tmp_path: Path) -> None:
    name = f"j#{at(100)}"
    mine = {
        5: [claim_started(GPU, "j", 5, owner="ns"), claim_started(GPU, name, 4, tenant="green")],
        120: [claim_ended(GPU, name, 120)],
    }
    found = await held(tmp_path, mine, {}, files_of(NO_CLAIMS, CHANGE))
    assert found["observed", "red"] == 95
    assert found["observed", "blue"] == 200
