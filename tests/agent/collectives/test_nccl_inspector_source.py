"""Logs of NCCL Inspector that jobs write: owners, links, floods, truncated and replaced files, and their metrics."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.clock import START
from support.inspector_logs import (
    COMMUNICATOR,
    InspectorDirectory,
    collective,
    copy_case,
    header,
    marked_lines,
    metadata,
    own_pid,
    straggling,
    text,
    whole_lines,
)
from support.reading import ORIGIN
from support.textfiles import page_of

from railscope.capture import CaptureMetadata
from railscope.catalog import collectives as c
from railscope.frame import Frame
from railscope_agent.collectives.communicator_totals import MIN_COMPARED
from railscope_agent.collectives.inspector import MAX_PART_BYTES
from railscope_agent.host import HostWrapper, Json
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.host.stepped_host import SteppedHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import is_shipped
from railscope_agent.sources import nccl_inspector
from railscope_agent.sources.nccl_inspector import CommunicatorSource

CALLS = f"{COMMUNICATOR} AllReduce 64MiB"


def communicator_frame(node: InspectorDirectory) -> Frame:
    outcome = SourceReader(CommunicatorSource(node.results), node.host, ORIGIN).run()
    assert not outcome.problem
    assert outcome.frame
    return outcome.frame


def test_the_endpoint_has_totals_and_the_place_of_each_rank(tmp_path: Path) -> None:
    node = copy_case("straggler", tmp_path)
    node.close()
    frame = communicator_frame(node)
    page = page_of(frame)
    rank = f'job_directory="",user="{os.geteuid()}",communicator="{COMMUNICATOR}",rank="2"'
    assert f"railscope_nccl_rank_last_arrivals_total{{{rank}}} 6" in page
    assert f"railscope_nccl_rank_late_seconds_total{{{rank}}} 0.0018" in page
    assert f'railscope_communicator_rank_info{{{rank},communicator_name="",pid="4002"' in page
    assert 'collective="AllReduce",size="64MiB"} 402653184' in page
    assert not is_shipped(frame)
    assert is_shipped(node.frame)


def test_a_log_of_a_user_without_a_process_on_a_gpu_is_not_read(tmp_path: Path) -> None:
    node = copy_case("straggler", tmp_path)
    node.places.processes.clear()
    for rank in range(4):
        node.add_process(4000 + rank, own_pid(rank), user=os.geteuid() + 1)
    node.read()
    assert (node.files, node.lines, node.totals) == ({"owner": 4}, {}, {})


def of_tenants(node: InspectorDirectory) -> None:
    """Give the processes of one user, as containers that run as root have, to two tenants."""
    for rank in range(4):
        name = "red" if rank < 2 else "blue"
        node.add_process(
            4000 + rank, own_pid(rank), source="kubernetes", workload=f"{name}/train", owner=name
        )


def test_a_log_of_a_user_with_processes_of_two_tenants_is_not_read(tmp_path: Path) -> None:
    node = copy_case("straggler", tmp_path)
    of_tenants(node)
    node.read()
    assert (node.files, node.totals) == ({"owner": 4}, {})


def test_a_directory_that_names_the_workload_has_logs_of_its_processes_only(tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path, job="run-a")
    for rank in range(4):
        name = "a" if rank < 2 else "b"
        facts = {"source": "kubernetes", "workload": f"{name}/run-{name}", "owner": name}
        node.add_process(4000 + rank, own_pid(rank), **facts)
    for rank in range(4):  # tenant a writes logs of processes of tenant b as well
        node.append(rank, whole_lines(rank, straggling(rank, 3)))
    node.close()
    assert node.files == {"read": 2, "owner": 2}
    assert set(node.totals) == {CALLS, f"{COMMUNICATOR} 0", f"{COMMUNICATOR} 1"}


def place_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def place_hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


def place_pipe(path: Path, outside: Path) -> None:
    assert outside.exists()
    os.mkfifo(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", [place_link, place_hard_link, place_pipe])
def test_only_regular_files_are_opened(place: Callable[[Path, Path], None], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(whole_lines(0, straggling(0, 3)))
    node = InspectorDirectory(tmp_path, job="job")
    place(node.log(0), outside)
    node.read()
    assert (node.files, node.totals) == ({"irregular": 1}, {})


class ReplacingHost(HostWrapper):
    """A host on which a job replaces the log of rank 0 by a link after it was listed."""

    def __init__(self, node: InspectorDirectory, target: Path) -> None:
        super().__init__(node.host)
        self._log, self._target = node.log(0), target

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if function == "inspector_log":
            self._log.unlink()
            self._log.symlink_to(self._target)
        return self._host.call(host_interface, function, *arguments)


def test_a_log_that_becomes_a_link_after_it_was_listed_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(whole_lines(0, straggling(0, 3)))
    node = InspectorDirectory(tmp_path, job="job")
    node.append(0, whole_lines(0, straggling(0, 1)))
    node.reader = SourceReader(node.source, ReplacingHost(node, outside), ORIGIN)
    node.read()
    assert (node.files, node.totals) == ({"unreadable": 1}, {})


def test_a_rotated_log_is_followed_and_what_was_not_read_is_counted(tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path)
    node.append(0, whole_lines(0, straggling(0, 3)) + b"{")
    node.read()
    node.log(0).rename(tmp_path / "old.1")
    node.append(0, whole_lines(0, straggling(0, 2)))
    node.read()
    assert node.totals[CALLS][0] == 5
    assert node.number(c.INSPECTOR_REPLACED) == 1
    assert node.number(c.INSPECTOR_SKIPPED) == 1


def test_a_job_that_writes_much_does_not_delay_another(tmp_path: Path) -> None:
    flood = InspectorDirectory(tmp_path, job="1")
    line = whole_lines(0, [collective(1, 64, 2)])
    for rank in range(3):
        flood.append(rank, whole_lines(rank, [collective(1, 64, 2)]) * (3 * 10**6 // len(line)))
    (tmp_path / "2").mkdir()
    small = tmp_path / "2" / f"gpu-node-1-pid{own_pid(3)}.log"
    small.write_bytes(whole_lines(3, straggling(3, 4)))
    flood.read()
    assert flood.totals[f"{COMMUNICATOR} AllReduce 64MiB"][0] == 4
    assert flood.number(c.INSPECTOR_WAITING) > 4 * 10**6
    part_lines = MAX_PART_BYTES // len(line) + 1
    assert flood.lines["read"] <= nccl_inspector.MAX_READ_LINES + part_lines


def test_what_grows_faster_than_it_is_read_is_skipped_and_counted(tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path)
    count = 2 * nccl_inspector.MAX_BEHIND_BYTES // 300
    node.append(0, marked_lines(0, [collective(n, 64, 2) for n in range(count)]))
    size = node.log(0).stat().st_size
    node.read()
    skipped = node.number(c.INSPECTOR_SKIPPED)
    assert 0 <= skipped - (size - nccl_inspector.MAX_BEHIND_BYTES) < 300
    assert set(node.lines) == {"headless"}, "the marker with the communicator was skipped"
    assert node.totals == {}


def many_communicators(rank: int, count: int) -> bytes:
    return text(
        *(
            {
                "header": header(0, communicator=f"0x{number:x}"),
                "metadata": metadata("v4.0", own_pid(rank)),
                "coll_perf": collective(1, 64, 2),
            }
            for number in range(1, count + 1)
        )
    )


def entities_of_jobs(node: InspectorDirectory) -> Counter[str]:
    return Counter(entity.key[0] for entity in node.results.readings)


@pytest.mark.parametrize("user", [os.geteuid(), 1234])
def test_one_job_or_user_with_all_kinds_and_ranks_frees_entries_for_others(
    user: int, tmp_path: Path
) -> None:
    if os.geteuid() not in {0, user}:
        pytest.skip("only root can give a log to another user")
    jobs = nccl_inspector.MAX_ENTITIES // nccl_inspector.MAX_JOB_ENTITIES
    for job in map(str, range(jobs)):
        (tmp_path / job).mkdir()
        path = tmp_path / job / f"gpu-node-1-pid{own_pid(0)}.log"
        path.write_bytes(many_communicators(0, nccl_inspector.MAX_JOB_ENTITIES))
    node = InspectorDirectory(tmp_path, job="other")
    node.read(2)
    assert entities_of_jobs(node).total() == nccl_inspector.MAX_ENTITIES
    node.append(1, many_communicators(1, 200))
    os.chown(node.log(1), user, -1)
    node.add_process(4001, own_pid(1), user)
    node.read(2)
    of_jobs = entities_of_jobs(node)
    assert of_jobs["other"] == 400
    assert of_jobs.total() == nccl_inspector.MAX_ENTITIES
    assert min(of_jobs.values()) >= 400


@pytest.mark.parametrize("redactor", [None, Redactor(["gpu-node-1"])])
def test_a_replay_has_the_totals_of_the_node(redactor: Redactor | None, tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path / "run/railscope/nccl-inspector", "60937", root=tmp_path)
    recording = RecordingHost(node.host, redactor)
    node.reader = SourceReader(node.source, recording, ORIGIN)
    for step in range(3):
        for rank in range(4):
            log = marked_lines(rank, straggling(rank, 6)[2 * step : 2 * step + 2])
            node.append(rank, (b"" if step else b"not a line\n") + log)
        node.read()
    node.close()
    about = CaptureMetadata("n", "b", START.wall_ns, START.boot_ns, 0, "test")
    replay = SteppedHost(about)
    again = InspectorDirectory(tmp_path / "run/railscope/nccl-inspector", root=tmp_path)
    again.reader = SourceReader(again.source, replay, ORIGIN)
    for moment in recording.moments:
        assert not replay.advance(moment), "a part of a log is no new device"
        if moment.calls:
            again.read()
    again.close()
    assert (again.totals, again.lines, again.files) == (node.totals, node.lines, node.files)
    assert again.lines == {"read": 36, "malformed": 4}
    assert again.totals[f"{COMMUNICATOR} 2"][1] == 6
    texts = "".join(moment.to_line() for moment in recording.moments)
    assert ("gpu-node" in texts) is (redactor is None)


def run_minute(
    node: InspectorDirectory, first: int, late: int, calls: int = 120, **how: int
) -> None:
    """Let the ranks make calls for more than a minute, and read them."""
    for step in range(13):
        for rank in range(4):
            made = straggling(rank, calls // 12, late, first + step * (calls // 12), **how)
            node.append(rank, whole_lines(rank, made))
        node.read()
    node.close()


def test_a_straggler_is_reported_once_with_its_place_and_again_after_a_recovery(
    tmp_path: Path,
) -> None:
    node = InspectorDirectory(tmp_path)
    run_minute(node, 1, late=2)
    run_minute(node, 1001, late=2)
    (event,) = node.events
    assert event.event_class is c.STRAGGLER_EVENT
    assert event.entity.key == ("", str(os.geteuid()), COMMUNICATOR, "2")
    facts = event.facts
    assert (facts["pid"], facts["gpu_index"], facts["late_percent"]) == ("4002", "2", "54")
    assert facts["last_arrivals"] == facts["compared"]
    assert int(facts["compared"]) >= MIN_COMPARED
    assert int(facts["late_milliseconds"]) == int(facts["compared"]) * 300 // 1000
    assert set(facts) <= set(c.STRAGGLER_EVENT.facts)
    run_minute(node, 2001, late=3)
    run_minute(node, 3001, late=3)
    assert [event.entity.key[3] for event in node.events] == ["2", "3"]
    run_minute(node, 4001, late=9)
    run_minute(node, 5001, late=9)
    run_minute(node, 6001, late=3)
    run_minute(node, 7001, late=3)
    assert [event.entity.key[3] for event in node.events] == ["2", "3", "3"]


def run_windows(node: InspectorDirectory, times_us: Mapping[str, Sequence[int]]) -> None:
    """Let communicators of one job make calls for a minute each, of these durations."""
    sequence = 0
    for durations in zip(*times_us.values(), strict=True):
        for _ in range(13):
            for communicator, time_us in zip(times_us, durations, strict=True):
                about = {"header": header(0, 4, communicator), "metadata": metadata("v4.0", 100)}
                made = [
                    collective(n, 8 << 20, time_us + n % 3) for n in range(sequence, sequence + 10)
                ]
                node.append(0, text(*(about | {"coll_perf": body} for body in made)))
            sequence += 10
            node.read()


def slow_paths(node: InspectorDirectory) -> list[tuple[str, str]]:
    assert all(event.event_class is c.SLOW_PATH_EVENT for event in node.events)
    return [(event.entity.key[2], event.facts["percent"]) for event in node.events]


def test_a_bandwidth_far_below_that_of_the_past_is_reported_once(tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path)
    run_windows(node, {"0xa1": [250, 251, 250, 250, 500, 500, 500]})
    ((_, percent),) = slow_paths(node)
    assert 50 <= int(percent) <= 60
    (event,) = node.events
    assert event.entity.key == ("", str(os.geteuid()), "0xa1", "AllReduce", "64MiB")
    assert event.facts["gpus"] == "0"
    usual = int(event.facts["expected_bytes_per_second"])
    assert usual == pytest.approx(2 * (8 << 20) / 251e-6, rel=0.01)
    assert set(event.facts) <= set(c.SLOW_PATH_EVENT.facts)
    run_windows(node, {"0xa1": [250, 250, 600]})
    assert len(slow_paths(node)) == 2


@pytest.mark.parametrize(
    "times_us",
    [
        {"0xa1": [250, 250, 250, 300, 250]},
        {"0xa1": [250, 500, 500, 500]},
        {"0xa1": [250, 250], "0xa2": [500, 500]},
        {"0xa1": [250, 250, 250, 250, 90]},
    ],
    ids=["little slower", "short past", "one other communicator", "faster"],
)
def test_a_bandwidth_without_clear_evidence_is_not_reported(
    times_us: dict[str, list[int]], tmp_path: Path
) -> None:
    node = InspectorDirectory(tmp_path)
    run_windows(node, times_us)
    assert slow_paths(node) == []
