"""From claims to jobs: starts, ends, shares, stale nodes and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.story import NodeReporter, accept, at, claim_ended, claim_started, core_in

from railscope.catalog import account as catalog, gpu as gpu_catalog
from railscope.catalog.entities import GPU
from railscope.frame import Entity, Event, Schema
from railscope.reading import Absent
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.config import CollectorSettings
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.fleet.fleet import NamesOfGpu
from railscope_collector.view_refresh import ViewRefresher
from railscope_collector.workloads.job_roster import JobKey
from railscope_collector.workloads.job_view import RunningJobs
from railscope_collector.workloads.pod_jobs import job_of_pod

POD_JOBS = re.compile(CollectorSettings().pod_job_pattern)


def busy(node: str) -> list[Schema]:
    """Two GPUs of a node and the activity of their SMs."""
    gpus = [
        Entity(
            GPU,
            (f"{node}-{i}",),
            {"rail": str(i), "index": str(i), "pci_address": f"0000:{i}b:00.0"},
        )
        for i in range(2)
    ]
    columns = tuple((gpu_catalog.GPU_SM_ACTIVITY, gpu) for gpu in gpus)
    return [Schema("gpu", (), tuple(gpus)), Schema("gpu_activity", columns)]


class ReportingNodes:
    """A collector's state, and nodes that report to it."""

    def __init__(
        self, directory: Path, files: AdministratorInputs | None = None, max_jobs: int = 100
    ) -> None:
        self.core = core_in(directory)
        self.reporters: dict[str, NodeReporter] = {}
        self.now = 0
        self.refresher = ViewRefresher(
            self.core,
            LiveAccount(
                self.core.evidence, lambda: files or AdministratorInputs(), pod_job_pattern=POD_JOBS
            ),
            stale_seconds=30,
            max_age_seconds=1,
            wall_ns=lambda: at(self.now),
            max_jobs=max_jobs,
        )

    def report(
        self,
        node: str,
        second: int,
        activity: tuple[int, int],
        *events: Event,
        reasons: bytes = b"",
    ) -> None:
        """A node reports the activity of its GPUs (in percent), and its events."""
        reporter = self.reporters.setdefault(node, NodeReporter(node, f"boot of {node}"))
        of_gpus, of_activity = busy(node)
        frames = reporter.frames(of_gpus, [second], events={second: events})
        rows = reporter.frames(
            of_activity, [second], values=lambda *_: [percent * 10_000 for percent in activity]
        )
        for frame in rows:
            object.__setattr__(frame, "reasons", reasons)
        accept(self.core, [reporter.record([*frames, *rows])])

    async def jobs(self, second: int) -> RunningJobs:
        """The jobs at a second."""
        self.now = second
        return (await self.refresher.refresh()).jobs


def unnamed(_: str, gpu: str) -> dict[str, str]:
    return {"index": "", "uuid": gpu, "pci_address": ""}


def reported(jobs: RunningJobs) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(jobs.to_job(job, unnamed)) for job in jobs.jobs]


def places_of(jobs: RunningJobs, names_of: NamesOfGpu) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(place) for place in jobs.places_of(jobs.jobs[0], names_of)]


def straggler(job: dict[str, Any], measure: str = "sm_activity") -> dict[str, Any]:
    return next(one for one in job["stragglers"] if one["measure"] == measure)


def claims(job: str, *gpus: str, second: int = 0, **facts: str) -> list[Event]:
    facts = {"workload": job, "owner": "vision", "tenant": "vision"} | facts
    return [claim_started(gpu, f"{job} on {gpu}", second, **facts) for gpu in gpus]


async def test_a_job_over_two_nodes_from_its_claims_to_its_end(tmp_path: Path):
    site = ReportingNodes(tmp_path)
    site.report("n1", 10, (90, 90), *claims("4711", "n1-0", "n1-1"))
    site.report("n2", 10, (90, 45), *claims("4711", "n2-0", "n2-1", second=5))
    (job,) = reported(await site.jobs(12))
    assert (job["tenant"], job["source"], job["workload"]) == ("vision", "slurm", "4711")
    assert (job["gpus"], job["nodes"], job["start_ns"]) == (4, 2, at(0))
    assert (job["stale_gpus"], job["shared_gpus"]) == (0, 0)
    found = straggler(job)
    assert (found["node"], found["gpu"]) == ("n2", "n2-1")
    assert found["deviation_ratio"] == pytest.approx(-0.5)
    assert (found["value"], found["median"]) == (pytest.approx(0.45), pytest.approx(0.9))
    assert straggler(job, "sm_clock") == {"measure": "sm_clock", "unknown": "stale"}
    places = places_of(jobs := site.refresher.views.jobs, site.core.names_of_gpu)
    assert [(p["node"], p["index"], p["held_ratio"]) for p in places] == [
        ("n1", "0", 1),
        ("n1", "1", 1),
        ("n2", "0", 1),
        ("n2", "1", 1),
    ]
    assert [p["pci_address"] for p in places] == [f"0000:{i}b:00.0" for i in (0, 1, 0, 1)]
    named = msgspec.to_builtins(jobs.to_job(jobs.jobs[0], site.core.names_of_gpu))
    assert (straggler(named)["index"], straggler(named)["pci_address"]) == ("1", "0000:1b:00.0")
    assert {cell.metric.name for cell in jobs.cells()} >= {
        catalog.JOB_GPUS.name,
        catalog.HOLDER_INFO.name,
        catalog.STRAGGLER_DEVIATION.name,
        "railscope_job_mean_gpu_sm_activity_ratio",
    }

    ends = [claim_ended(f"n2-{i}", f"4711 on n2-{i}", 20) for i in range(2)]
    site.report("n2", 20, (0, 0), *ends)
    (job,) = reported(await site.jobs(21))
    assert (job["gpus"], job["nodes"]) == (2, 1)
    site.report(
        "n1", 22, (0, 0), *[claim_ended(f"n1-{i}", f"4711 on n1-{i}", 22) for i in range(2)]
    )
    jobs = await site.jobs(23)
    assert reported(jobs) == []
    assert list(jobs.cells()) == []


async def test_a_stale_node_is_counted_and_not_compared(tmp_path: Path):
    site = ReportingNodes(tmp_path)
    for node in ("n1", "n2"):
        site.report(node, 10, (90, 80), *claims("1", f"{node}-0", f"{node}-1"))
    site.report("n1", 50, (90, 80))
    jobs = await site.jobs(60)
    (job,) = reported(jobs)
    assert (job["gpus"], job["stale_gpus"]) == (4, 2)
    assert straggler(job)["gpu"] == "n1-1"
    readings = {p["gpu"]: p["readings"][0] for p in places_of(jobs, site.core.names_of_gpu)}
    assert readings["n2-0"] == {"measure": "sm_activity", "absent": "stale"}
    (job,) = reported(await site.jobs(200))
    assert job["stale_gpus"] == 4
    assert straggler(job) == {"measure": "sm_activity", "unknown": "stale"}
    assert not any(r["metric"].endswith("sm_activity_ratio") for r in job["rollups"])


async def test_what_is_not_known_has_a_reason_and_no_number(tmp_path: Path):
    site = ReportingNodes(tmp_path)
    denied = bytes([Absent.DENIED.value] * 2)
    site.report("n1", 10, (0, 0), *claims("denied", "n1-0", "n1-1"), reasons=denied)
    site.report("n2", 10, (90, 0), *claims("one", "n2-0"))
    site.report("n3", 10, (0, 0), *claims("idle", "n3-0", "n3-1"))
    halves = [{"compute": "0-420", "memory": "0-420"}, {"compute": "420-840", "memory": "420-840"}]
    site.report(
        "n4",
        10,
        (50, 50),
        *claims("left", "n4-0", "n4-1", **halves[0]),
        *claims("right", "n4-0", "n4-1", **halves[1]),
    )
    jobs = await site.jobs(11)
    found = {job["workload"]: job for job in reported(jobs)}
    assert {name: straggler(job).get("unknown") for name, job in found.items()} == {
        "denied": "denied", "one": "one GPU", "idle": "idle", "left": "shared", "right": "shared",
    }  # fmt: skip
    assert (found["left"]["gpus"], found["left"]["shared_gpus"]) == (1.0, 2)
    assert found["left"]["rollups"] == ()
    named = {cell.labels[2] for cell in jobs.cells() if cell.metric is catalog.STRAGGLER_DEVIATION}
    assert named == set()


@pytest.mark.parametrize(
    ("source", "workload", "job"),
    [
        ("slurm", "4711", ("slurm", "4711")),
        ("command", "slurm:4711", ("slurm", "4711")),
        ("file", "kubernetes:research/train-0", ("kubernetes", "research/train-0")),
        ("command", "lab:17", ("command", "lab:17")),
        ("libvirt", "vm-7", ("libvirt", "vm-7")),
        ("kubernetes", "research/bert-worker-3", ("kubernetes", "research/bert")),
        ("command", "kubernetes:research/bert-master-0", ("kubernetes", "research/bert")),
        ("kubernetes", "research/notebook-0", ("kubernetes", "research/notebook-0")),
        ("slurm", "bert-worker-3", ("slurm", "bert-worker-3")),
        ("command", "", ("command", "n1")),
    ],
)
async def test_what_a_job_is_called(
    tmp_path: Path, source: str, workload: str, job: tuple[str, str]
):
    site = ReportingNodes(tmp_path)
    event = claim_started(
        "n1-0", "claim", 0, workload=workload, source=source, owner="o", tenant="t"
    )
    site.report("n1", 10, (90, 80), event)
    assert [job.key for job in (await site.jobs(11)).jobs] == [("t", *job)]


async def test_use_without_a_claim_and_health_checks_are_not_jobs(tmp_path: Path):
    site = ReportingNodes(tmp_path)
    unclaimed = claim_started(
        "n1-0", "unclaimed", 0, unclaimed=True, workload="pid 17", level="process"
    )
    site.report("n1", 10, (90, 80), unclaimed, *claims("check", "n1-1", system="true"))
    assert (await site.jobs(11)).jobs == ()


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("bert-worker-0", "bert"),
        ("bert-2-master-0", "bert-2"),
        ("llama-11-x7k2p", "llama"),
        ("gpt-workers-0-3-bcd49", "gpt-workers"),
        ("api-7d9f8b6c5d-x7k2p", "api-7d9f8b6c5d-x7k2p"),
        ("cache-0", "cache-0"),
        ("run-2024-tests", "run-2024-tests"),
    ],
)
def test_pods_of_a_controller_have_the_name_of_its_job(pod: str, job: str) -> None:
    """Replicas of a deployment, and of a stateful set, may be services: each is a job."""
    key = JobKey("team", "kubernetes", f"default/{pod}")
    assert job_of_pod(key, POD_JOBS).workload == f"default/{job}"
    slurm = JobKey("team", "slurm", f"default/{pod}")
    assert job_of_pod(slurm, POD_JOBS) is slurm
