"""Selection of a ledger's claims to compare with books, and the report of the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gpu_evidence import Evidence, NodeSighting, NodeStay, timeline_of

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope_collector.jobs.scheduler_records import (
    SchedulerRecords,
)
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.evidence import MeteredClaim, NodeEvidence
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata

S = 1_000_000_000
DAY = Period(0, 86_400 * S)
SACCT = """\
JobIDRaw|User|Account|Start|End|NodeList|AllocTRES
7|u|physics|100|200|n1|gres/gpu=1
8|u|physics|300|Unknown|n1|gres/gpu=1
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    yield found
    found.close()


def reported(
    name: str, workload: str, start: int, end: int, tenant: str = "slurm:physics"
) -> MeteredClaim:
    """A claim as an agent reports it."""
    return MeteredClaim(
        ClaimAuthority.SCHEDULER, start * S, f"{name}/{start}", tenant, end * S, workload, "n1"
    )


def written(ledger: Ledger, *claims: MeteredClaim) -> None:
    evidence = Evidence(
        "GPU-0",
        (NodeStay(0, "n1"),),
        claims,
        sightings=(NodeSighting(NodeEvidence.SCHEDULER, *_span()),),
    )
    ledger.write_days([timeline_of(evidence).meter(0)], DAY.end_ns)


def _span() -> tuple[int, int]:
    return DAY.start_ns, DAY.end_ns


def books(directory: Path, text: str = SACCT, scheduler: str = "slurm") -> SchedulerRecords:
    file = directory / "books"
    file.write_text(text)
    return SchedulerRecords.read({scheduler: [file]})


def test_the_ended_runs_of_a_job_that_runs_again_are_compared(ledger, tmp_path):
    written(
        ledger,
        reported("slurm/n1/7/GPU-0", "7", 100, 200),
        reported("slurm/n1/8/GPU-0", "8", 300, 400),
        reported("slurm/n1/7b/GPU-0", "7", 500, 600),
    )
    running = "7|u|physics|500|Unknown|n1|gres/gpu=1\n"
    found = books(tmp_path, SACCT + running).compare_with(ledger, DAY, 0)
    assert (found.agrees, found.jobs, found.unended) == (True, 1, ("7", "8"))
    longer = SACCT.replace("7|u|physics|100|200", "7|u|physics|50|200")
    found = books(tmp_path, longer + running).compare_with(ledger, DAY, 0)
    assert [difference.run.recorded_time for difference in found.differences] == [
        150 * S * GPU_CAPACITY
    ]


@pytest.mark.parametrize("tolerance", [0, 2 * S])
def test_a_run_that_ended_in_a_later_snapshot_is_compared_once(ledger, tmp_path, tolerance):
    """Whatever the order of the files; a run of the same job that still runs stays without an end."""
    written(
        ledger,
        reported("slurm/n1/7/GPU-0", "7", 100, 200 + tolerance // S),
        reported("slurm/n1/8/GPU-0", "8", 300, 400),
        reported("slurm/n1/7b/GPU-0", "7", 500, 600),
    )
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    earlier.write_text(SACCT.replace("100|200", "100|Unknown"))
    later.write_text(f"{SACCT}7|u|physics|500|Unknown|n1|gres/gpu=1\n")
    for files in ([earlier, later], [later, earlier]):
        found = SchedulerRecords.read({"slurm": files}).compare_with(ledger, DAY, tolerance)
        assert (found.agrees, found.jobs, found.unended) == (True, 1, ("7", "8"))
