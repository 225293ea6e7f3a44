"""Metrics files of NCCL Inspector: the GPU of their owner, files that are being written, and hostile content."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.inspector_logs import InspectorDirectory, gpu_uuid, metrics
from support.reading import ORIGIN
from support.shared import capture_path
from support.textfiles import page_of

from railscope.capture import CaptureMetadata
from railscope.catalog import collectives as c
from railscope.frame import Frame
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.inspector_metrics import (
    InspectorMetrics,
    ReportedCalls,
    parse_metrics,
)
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.stepped_host import SteppedHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import is_shipped
from railscope_agent.sources import inspector_pushes, nccl_metrics

KEY = ("DP Group 0", "4", "1", "AllReduce", "4-5MB", "Ring_ll")
COUNTS = b'nccl_collectives_total{gpu="GPU0"} 90\nnccl_p2p_total{gpu="GPU0"} 9\nnccl_collectives_dropped_total{gpu="GPU0"} 4\n'


class MetricsDirectory(InspectorDirectory):
    """A directory with metrics files, and the source that reads them."""

    def __init__(self, directory: Path, job: str = "") -> None:
        super().__init__(directory, job)
        self.metrics = nccl_metrics.NcclMetricsSource(self.settings, self.places)
        self.reader = SourceReader(self.metrics, self.host, ORIGIN)

    def write(self, content: bytes, gpu: str = "", age_seconds: float = 5) -> Path:
        """Write the file of a GPU, by default of the first one."""
        path = self.directory / f"nccl_inspector_metrics_{gpu or gpu_uuid(0)}.prom"
        path.write_bytes(content)
        wall_ns = self.clock.now().wall_ns + 5 * 10**9 - round(age_seconds * 10**9)
        os.utime(path, ns=(wall_ns, wall_ns))
        return path

    def find(self) -> Frame:
        """Return the frame of a read after which no column is missing."""
        self.read()
        self.clock.advance(-5)
        self.read()
        return self.frame

    @property
    def states(self) -> dict[str, int]:
        """Files by state, without those of none."""
        return self.by_state(c.METRICS_FILES)

    @property
    def bandwidths(self) -> dict[str, int]:
        """Bus bandwidths by name of the communicator."""
        return {
            entity.key[3]: int(value)  # type: ignore[call-overload]
            for metric, entity, value in self.frame.readings()
            if metric is c.REPORTED_BANDWIDTH
        }


def test_a_file_has_bandwidth_duration_and_counts_of_its_gpu(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    node.write(metrics(bandwidth=678.263, time=9498.47) + COUNTS)
    frame = node.find()
    page = page_of(frame)
    gpu = f'gpu="{gpu_uuid(0)}",job_directory="",user="{os.geteuid()}"'
    labels = f'{gpu},communicator_name="DP Group 0",ranks="4",nodes="1",collective="AllReduce",message_size="4-5MB",algorithm="Ring_ll"'
    assert (
        f"railscope_nccl_reported_bus_bandwidth_bytes_per_second{{{labels}}} 678263000000\n" in page
    )
    assert f"railscope_nccl_reported_call_seconds{{{labels}}} 0.00949847\n" in page
    assert f"railscope_nccl_reported_calls_total{{{gpu}}} 99\n" in page
    assert f"railscope_nccl_reported_dropped_calls_total{{{gpu}}} 4\n" in page
    assert not is_shipped(frame)


def test_the_published_file_is_read() -> None:
    found = parse_metrics(capture_path("collectives/nccl-inspector/v5.1-readme.prom").read_bytes())
    collective = ("DP Group 0", "4", "1", "AllReduce", "4-5GB", "Ring_ll")
    send = ("DP Group 0", "4", "1", "Send", "512-513MB", "")
    assert found.reports == [
        ReportedCalls(collective, 678_263_000_000, 9_498_470),
        ReportedCalls(send, 464_900_000_000, 1_154_870),
    ]
    assert found.lines == {"read": 4}


@pytest.mark.parametrize(
    "notation", [gpu_uuid(0)[4:], gpu_uuid(0)[4:].replace("-", ""), gpu_uuid(0).lower()]
)
def test_a_gpu_is_found_by_its_uuid_in_any_notation(notation: str, tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    node.write(metrics(bandwidth=1), notation)
    node.find()
    assert node.bandwidths == {"DP Group 0": 10**9}


def test_a_file_about_the_gpu_of_another_user_is_not_read(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    node.add_process(4001, 101, user=os.geteuid() + 1)
    node.write(metrics(bandwidth=1), gpu_uuid(1))
    node.write(metrics(bandwidth=1), gpu_uuid(9))
    node.find()
    assert (node.states, node.bandwidths) == ({"owner": 2}, {})


def test_a_file_about_the_gpu_of_another_tenant_of_the_same_user_is_not_read(
    tmp_path: Path,
) -> None:
    node = MetricsDirectory(tmp_path, job="run-a")
    for rank, name in enumerate("aabb"):
        facts = {"source": "kubernetes", "workload": f"{name}/run-{name}", "owner": name}
        node.add_process(4000 + rank, 100 + rank, **facts)
    node.write(metrics(bandwidth=1), gpu_uuid(1))
    node.write(metrics(bandwidth=1), gpu_uuid(2))
    node.find()
    assert node.states == {"read": 1, "owner": 1}


def test_a_file_that_is_being_written_is_read_later_and_keeps_its_series(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    node.write(metrics(bandwidth=1), age_seconds=0)
    node.read()
    assert (node.states, node.bandwidths) == ({"waiting": 1}, {})
    node.find()
    assert (node.states, node.bandwidths) == ({"read": 1}, {"DP Group 0": 10**9})
    node.write(metrics("half", bandwidth=2), age_seconds=0)
    node.read()
    assert (node.states, node.bandwidths) == ({"read": 1}, {"DP Group 0": 10**9})
    node.find()
    assert node.bandwidths == {"half": 2 * 10**9}


@pytest.mark.parametrize(
    ("content", "age_seconds", "state"),
    [
        (b"", 5, "incomplete"),
        (metrics(bandwidth=1)[:-1], 5, "incomplete"),
        (metrics(bandwidth=1), 301, "outdated"),
        (metrics(bandwidth=1), -301, "outdated"),
        (b"# \n" * 100_000, 5, "too_large"),
    ],
)
def test_a_file_that_is_not_usable_has_no_series(
    content: bytes, age_seconds: float, state: str, tmp_path: Path
) -> None:
    node = MetricsDirectory(tmp_path)
    node.write(content, age_seconds=age_seconds)
    node.read()
    assert (node.states, node.bandwidths) == ({state: 1}, {})


def test_a_link_is_not_read(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path, job="1")
    path = node.write(metrics(bandwidth=1))
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    node.read()
    assert node.states == {"irregular": 1}


def test_the_number_of_series_is_bounded_for_each_job(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    names = [f"{number:04}" for number in range(nccl_metrics.MAX_JOB_REPORTS + 7)]
    node.write(b"".join(metrics(name, bandwidth=1) for name in names))
    node.find()
    assert len(node.bandwidths) == nccl_metrics.MAX_JOB_REPORTS
    assert node.by_state(c.METRICS_LINES)["excess"] == 7


def test_without_a_directory_or_a_file_there_are_no_columns(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    assert node.reader.run().frame is None
    off = nccl_metrics.NcclMetricsSource(CollectiveSettings(), node.places)
    assert off.probe(node.host).columns == ()


@pytest.mark.parametrize(
    "line",
    [
        b"nccl_bus_bandwidth_gbs 1",
        b"nccl_unknown" + metrics(bandwidth=1)[22:-1],
        metrics('a"b', bandwidth=1)[:-1],
        metrics("a\\n", bandwidth=1)[:-1],
        metrics(kind="All Reduce", bandwidth=1)[:-1],
        metrics(bandwidth=-1)[:-1],
        metrics(bandwidth=1e6)[:-1],
        metrics(time=1e10)[:-1],
        metrics(bandwidth=float("nan"))[:-1],
        metrics(bandwidth=1)[:-2] + b"1e999",
        metrics(bandwidth=1)[:-2] + b"1.2.3",
        b"\xff",
        b'{"coll":1}',
    ],
)
def test_a_malformed_line_is_counted_and_the_others_are_read(line: bytes) -> None:
    found = parse_metrics(line + b"\n# a comment\n\n" + metrics(bandwidth=2))
    assert found.lines == {"malformed": 1, "read": 1}
    assert found.reports == [ReportedCalls(KEY, 2 * 10**9)]


@given(st.binary(max_size=2000))
def test_any_bytes_are_accepted(content: bytes) -> None:
    try:
        found = parse_metrics(content)
    except CollectiveFormatError:
        assert not content.endswith(b"\n")
    else:
        assert found == InspectorMetrics(lines=found.lines)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_names_are_printable(name: str) -> None:
    for report in parse_metrics(metrics(name, bandwidth=1)).reports:
        assert report.key[0].isprintable()


def test_a_replay_has_the_series_of_the_node(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    recording = RecordingHost(node.host)
    node.reader = SourceReader(node.metrics, recording, ORIGIN)
    node.write(metrics(bandwidth=3))
    node.find()
    now = node.clock.now()
    replay = SteppedHost(CaptureMetadata("n", "b", now.wall_ns, now.boot_ns, 0, "test"))
    for moment in recording.moments:
        moment.offset_ns = 0
        replay.advance(moment)
    again = MetricsDirectory(tmp_path)
    again.reader = SourceReader(again.metrics, replay, ORIGIN)
    again.find()
    assert (
        (again.states, again.bandwidths)
        == (node.states, node.bandwidths)
        == ({"read": 1}, {"DP Group 0": 3 * 10**9})
    )


def test_jobs_of_one_user_do_not_displace_the_reports_of_another(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    pushes = inspector_pushes.InspectorPushes(node.places)
    for number, user, count in (*((n, 1000, 512) for n in range(4)), (4, 1001, 3)):
        reports = [
            ReportedCalls((f"{number}-{each}", *KEY[1:]), 10**9, 10**6) for each in range(count)
        ]
        push = inspector_pushes.InspectorPush(InspectorMetrics(reports), [], Counter())
        process = inspector_pushes.PushingProcess(number, (f"job-{number}", user), gpu_uuid(number))
        pushes.add(process, push, node.clock.now().boot_ns)
    node.metrics = nccl_metrics.NcclMetricsSource(node.settings, node.places, pushes)
    node.reader = SourceReader(node.metrics, node.host, ORIGIN)
    node.find()
    names = Counter(name.partition("-")[0] for name in node.bandwidths)
    assert names == {"0": 512, "1": 511, "2": 511, "3": 511, "4": 3}
    assert node.by_state(c.METRICS_LINES)["excess"] == 3
