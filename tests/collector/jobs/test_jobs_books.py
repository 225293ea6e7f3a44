"""Selection of a ledger's claims to compare with books, and the report of the comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railscope.audit.record import RecordActor
from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import format_timestamp
from railscope_collector.files.tenants_file import parse_tenants
from railscope_collector.jobs.account_tenants import account_name
from railscope_collector.jobs.imported_lists import NewList, PlacedJob
from railscope_collector.jobs.job_list_import import import_list
from railscope_collector.jobs.scheduler_records import (
    SchedulerRecords,
    SchedulerRecordsError,
    comparison_text,
)
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.evidence import (
    Evidence,
    MeteredClaim,
    NodeEvidence,
    NodeSighting,
    NodeStay,
)
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
    ledger.write(MeteredGpu.compute(evidence, {}).day(0, MeteringComputation("test", 0)))


def _span() -> tuple[int, int]:
    return DAY.start_ns, DAY.end_ns


def books(directory: Path, text: str = SACCT, scheduler: str = "slurm") -> SchedulerRecords:
    file = directory / "books"
    file.write_text(text)
    return SchedulerRecords.read({scheduler: [file]})


def test_only_claims_of_the_schedulers_whose_books_are_given_are_compared(ledger, tmp_path):
    written(
        ledger,
        reported("slurm/n1/7/GPU-0", "7", 100, 200),
        reported("slurm/n1/8/GPU-0", "8", 300, 400),
        reported("docker/n1/abc/GPU-0", "abc", 500, 600, "docker:anna"),
        reported("kubernetes/n1/lab/p/GPU-0", "lab/p", 700, 800, "kubernetes:lab"),
    )
    found = books(tmp_path).compare_with(ledger, DAY, 0)
    assert found.agrees
    assert (found.jobs, found.unended) == (1, ("8",))
    assert [(check.tenant, check.found) for check in found.tenants] == [("physics", 100 * S)]
    pods = books(tmp_path, '{"items": []}', "kubernetes").compare_with(ledger, DAY, 0)
    assert [difference.job for difference in pods.differences] == ["lab/p"]


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


def test_a_job_without_an_end_has_the_tenants_of_its_account(ledger, tmp_path):
    """Its time before a change of the tenant is no ended run."""
    written(
        ledger,
        reported("slurm/n1/7/GPU-0", "7", 100, 200, "institute"),
        reported("slurm/n1/8/GPU-0", "8", 300, 400, "institute"),
    )
    file = tmp_path / "books"
    file.write_text(SACCT)
    change = format_timestamp(350 * S)
    mappings = parse_tenants(
        "tenant,source,owner,from,to\n"
        f"institute,slurm,physics,1970-01-01T00:00:00Z,{change}\nfaculty,slurm,physics,{change},\n"
    )
    records = SchedulerRecords.read({"slurm": [file]}, tenants=mappings)
    assert [(job.tenant, job.run) for job in records.unended] == [
        ("institute", ("8", 300 * S)),
        ("faculty", ("8", 300 * S)),
    ]
    found = records.compare_with(ledger, DAY, 0)
    assert (found.agrees, found.jobs, found.unended) == (True, 1, ("8",))


def test_a_claim_of_a_file_may_be_one_of_slurm(ledger, tmp_path):
    written(
        ledger,
        reported("file/n1/slurm:7/GPU-0", "slurm:7", 100, 200),
        reported("file/n1/night/GPU-0", "night", 500, 600),
    )
    assert books(tmp_path).compare_with(ledger, DAY, 0).agrees


def test_a_difference_as_text(ledger, tmp_path):
    written(
        ledger,
        reported("slurm/n1/7/GPU-0", "7", 100, 260),
        reported("slurm/n1/9/GPU-0", "9", 300, 400, "staff"),
    )
    found = books(tmp_path).compare_with(ledger, DAY, 15 * S)
    assert list(comparison_text(found)) == [
        "R3: 1 job of the scheduler's records, 2 tenants",
        (
            "  physics: ledger 0:02:40, scheduler 0:01:40, difference 0:01:00 of 0:00:30 allowed,"
            " MORE THAN CLOCKS EXPLAIN"
        ),
        (
            "  staff: ledger 0:01:40, scheduler 0:00:00, difference 0:01:40 of 0:00:30 allowed,"
            " MORE THAN CLOCKS EXPLAIN"
        ),
        "jobs that differ: 2",
        (
            "  job 7 of physics, 1970-01-01T00:01:40Z to 1970-01-01T00:03:20Z: another start or end;"
            " 1 GPU in the ledger, 1 in the scheduler's records, start and end in the ledger +0 s and +60 s;"
            " 0:01:00 GPU-hours more in the ledger"
        ),
        (
            "  job 9 of - / staff, 1970-01-01T00:05:00Z to 1970-01-01T00:06:40Z: in the ledger and not"
            " in the scheduler's records; 1 GPU in the ledger, 0 in the scheduler's records; 0:01:40 GPU-hours more in the ledger"
        ),
        "not compared, as they have not ended: 8",
    ]


def test_lists_of_two_clusters_have_the_same_job_ids(ledger, tmp_path):
    """The records are compared with the list that has their source in an import."""
    by = TimedActor(RecordActor("operator", "op", "test"), DAY.end_ns)
    for source, gpu, end in (("slurm", "n1/g0", 200), ("slurm:b", "n1/g1", 260)):
        job = PlacedJob(gpu, 100 * S, "7", "physics", end * S, "n1", "h100")
        import_list(ledger, NewList(source, DAY, DAY.end_ns, as_observed=True, jobs=[job]), by)
    found = books(tmp_path).compare_with(ledger, DAY, 0)
    assert (found.agrees, found.jobs) == (True, 1)
    assert (
        "not compared, lists of other sources in the ledger: slurm:b; fix: name the source of the records with --source"
        in comparison_text(found)
    )
    records = SchedulerRecords.read({"slurm": [tmp_path / "books"]}, source="slurm:b")
    (difference,) = records.compare_with(ledger, DAY, 0).differences
    assert (difference.job, difference.end_off_ns) == ("7", 60 * S)


def test_a_bad_pod_is_named_and_the_others_are_compared(ledger, tmp_path):
    written(ledger, reported("kubernetes/n1/lab/a/GPU-0", "lab/a", 100, 200, "lab"))
    pods = [pod("a", "1970-01-01T00:01:40Z"), pod("b", "yesterday")]
    found = books(tmp_path, json.dumps({"items": pods}), "kubernetes").compare_with(ledger, DAY, 0)
    assert (found.jobs, found.agrees, found.is_complete) == (1, True, False)
    assert list(comparison_text(found))[-2:] == [
        "NOT COMPLETE, not compared: 1 line",
        (
            f"  {tmp_path / 'books'}: pod 2 'lab/b': status.startTime: 'yesterday': expected a time from 1970 to"
            " 2105 with its zone"
        ),
    ]


def test_a_job_that_ends_after_now_is_a_bad_line(tmp_path):
    """As in an import."""
    file = tmp_path / "books"
    file.write_text(SACCT)
    records = SchedulerRecords.read({"slurm": [file]}, now_ns=250 * S)
    assert [job.id for job in records.jobs] == ["7"]
    assert [line.partition(": ")[2][:13] for line in records.rejected] == ["line 3: Start"]


def pod(name: str, start: str) -> dict[str, Any]:
    """A pod with a GPU until 200 s after 1970."""
    ended = {"state": {"terminated": {"finishedAt": "1970-01-01T00:03:20Z"}}}
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"uid": name, "name": name, "namespace": "lab"},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Succeeded", "startTime": start, "containerStatuses": [ended]},
    }


def test_books_that_are_none_name_their_file(tmp_path):
    with pytest.raises(SchedulerRecordsError, match="books: line 1: JobID: missing in the header"):
        books(tmp_path, "hello")
    with pytest.raises(SchedulerRecordsError, match="nothing"):
        SchedulerRecords.read({"slurm": [tmp_path / "nothing"]})


def test_an_account_without_a_row_is_named_as_the_books_do():
    assert account_name("slurm:physics") == "physics"
    assert account_name("kubernetes:lab:x") == "lab:x"
    assert account_name("docker:anna") == "docker:anna"
    assert account_name("staff") == "staff"
    assert account_name("slurm:staff", {"staff"}) == "slurm:staff"
