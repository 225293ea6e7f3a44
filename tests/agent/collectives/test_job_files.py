"""Files that jobs place in the directory of dumps: links, pipes, large files, names, and their owners."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.clock import ManualClock
from support.flight_recorders import dump, pickled
from support.reading import ORIGIN, readings

from railscope_agent.config import AgentSettings
from railscope_agent.host import job_files
from railscope_agent.host.files import RootedFiles
from railscope_agent.host.job_files import RankProcess, parse_rank_process
from railscope_agent.host.live_host import LiveHost
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.rank_places import processes_of_job

CONTENT = pickled(dump(range(2), 5, 4, 10**18))


def listed(directory: Path) -> dict[tuple[str, str], dict[str, Any]]:
    answer = LiveHost().call("job_files", "list", str(directory))
    return {(file["job"], file["name"]): file for file in answer["files"]}


def read(directory: Path, job: str, name: str) -> Any:
    return LiveHost().call("job_files", "flight_recorder", str(directory), job, name)


def test_dumps_are_found_in_the_directory_and_in_directories_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_3").write_bytes(CONTENT)
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "rank_12.json").write_bytes(CONTENT)
    (tmp_path / "4711" / "notes.txt").write_bytes(b"")
    (tmp_path / "4711" / "deeper").mkdir()
    (tmp_path / "4711" / "deeper" / "rank_1").write_bytes(CONTENT)
    files = listed(tmp_path)
    assert {key: file["subject"] for key, file in files.items()} == {
        ("", "nccl_trace_rank_3"): "3",
        ("4711", "rank_12.json"): "12",
    }
    assert all(file["user"] == os.geteuid() and file["is_regular"] for file in files.values())
    opened = read(tmp_path, "4711", "rank_12.json")
    assert opened["user"] == os.geteuid()
    assert opened["dump"]["groups"][0]["enqueued"] == 5


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rank_0").write_bytes(CONTENT)
    top = tmp_path / "top"
    top.mkdir()
    (top / "rank_0").symlink_to(outside / "rank_0")
    (top / "rank_1").hardlink_to(outside / "rank_0")
    (top / "job").symlink_to(outside)
    assert {name: file["is_regular"] for (_, name), file in listed(top).items()} == {
        "rank_0": False,
        "rank_1": False,
    }
    with pytest.raises(OSError, match="not a regular file"):
        read(top, "", "rank_0")
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number is checked
        read(top, "job", "rank_0")
    assert failure.value.errno in {errno.ELOOP, errno.ENOTDIR}


@pytest.mark.parametrize("name", ["../outside_0", "/etc/passwd_0", "a/b_0"])
def test_names_with_a_slash_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="without a slash"):
        read(tmp_path, "", name)
    with pytest.raises(OSError, match="without a slash"):
        read(tmp_path, "..", "rank_0")


@pytest.mark.timeout(20)
def test_a_pipe_does_not_block_the_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0")
    assert not listed(tmp_path)["", "rank_0"]["is_regular"]
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path, "", "rank_0")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "rank_0").open("wb") as file:
        file.truncate(job_files.MAX_DUMP_BYTES + 1)
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number is checked
        read(tmp_path, "", "rank_0")
    assert failure.value.errno == errno.EFBIG


def test_a_file_of_another_form_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(OSError, match="expected one of a literal") as failure:
        read(tmp_path, "", "rank_0")
    assert failure.value.errno == errno.EBADMSG


def test_the_newest_directories_are_listed_up_to_the_bound(tmp_path: Path) -> None:
    counts = {"new": 8, "middle": 100, "old": 2}
    for age, (job, count) in enumerate(counts.items()):
        (tmp_path / job).mkdir()
        for number in range(count):
            (tmp_path / job / f"rank_{number}").touch()
        os.utime(tmp_path / job, (0, 1000 - age))
    calls = job_files.JobFileCalls(RootedFiles(Path("/")), max_entries=60 + len(counts))
    answer = calls.call("list", str(tmp_path))
    found = Counter(file["job"] for file in answer["files"])
    assert found == {"new": 8, "middle": 52}
    assert not answer["is_complete"]


STATUS = b"Name:\tpython3\nUid:\t1000\t0\t0\t0\nGid:\t1000\t0\t0\t0\n"


@pytest.mark.parametrize(
    ("environment", "rank", "jobs"),
    [
        (b"RANK=3\0WORLD_SIZE=8\0SECRET=x\0", 3, []),
        (b"SLURM_PROCID=5\0RANK=3\0SLURM_JOB_ID=77\0TORCHELASTIC_RUN_ID=run\0", 3, ["77", "run"]),
        (b"SLURM_PROCID=5\0", 5, []),
        (b"SLURM_PROCID=0\0OMPI_COMM_WORLD_RANK=6\0PMIX_RANK=6\0", 6, []),
        (b"SLURM_PROCID=0\0PMI_RANK=7\0", 7, []),
        (b"SLURM_PROCID=1\0PMIX_RANK=8\0", 8, []),
        (b"OMPI_COMM_WORLD_RANK=1\0RANK=9\0", 9, []),
        (b"RANK=-1\0OMPI_COMM_WORLD_RANK=2\0", 2, []),
        (b"RANK=\xff\0", None, []),
        (b"RANK=" + b"9" * 10_000, None, []),
        (b"", None, []),
    ],
)
def test_rank_and_job_are_those_of_the_environment(
    environment: bytes, rank: int | None, jobs: list[str]
) -> None:
    assert parse_rank_process(STATUS, environment) == RankProcess(1000, rank, jobs)
    assert parse_rank_process(b"Name:\tUid: 5\n", environment) is None


def test_a_rank_has_the_process_of_its_user_and_job_only() -> None:
    processes = [
        (10, RankProcess(1000, 0, ["77"])),
        (11, RankProcess(1000, 1, ["77"])),
        (20, RankProcess(1000, 0, ["78"])),
        (30, RankProcess(2000, 1, ["77"])),
        (40, RankProcess(1000, None, ["77"])),
    ]
    assert processes_of_job(processes, "77", 1000) == {0: 10, 1: 11}
    assert processes_of_job(processes, "77", 2000) == {1: 30}
    assert processes_of_job(processes, "", 1000) == {1: 11}, "two processes may be rank 0"
    assert processes_of_job(processes, "77", 3000) == {}


def test_a_directory_of_dumps_that_appears_later_is_read(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = AgentSettings()
    (source,) = [s for s in machine_sources(settings) if s.name == "flight_recorder"]
    reader = SourceReader(source, LiveHost(tmp_path, clock), ORIGIN)
    outcome = reader.run()
    assert outcome.frame is None
    assert (outcome.findings, outcome.problem) == ((), "")
    (tmp_path / "run/railscope/flight-recorder").mkdir(parents=True)
    clock.advance(61)
    frame = reader.run().frame
    assert frame
    assert readings(frame)["railscope_flight_recorder_files", ("read",)] == 0
