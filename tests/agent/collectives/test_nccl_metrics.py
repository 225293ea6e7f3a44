"""Metrics files of NCCL Inspector: the GPU of their owner, files that are being written, and hostile content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.inspector_logs import InspectorDirectory, gpu_uuid, metrics
from support.reading import ORIGIN
from support.shared import capture_path
from support.textfiles import page_of

from railscope.catalog import collectives as c
from railscope.frame import Frame
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.inspector_metrics import (
    InspectorMetrics,
    ReportedCalls,
    parse_metrics,
)
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.service import is_shipped
from railscope_agent.sources import nccl_metrics

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


def test_the_number_of_series_is_bounded_for_each_job(tmp_path: Path) -> None:
    node = MetricsDirectory(tmp_path)
    names = [f"{number:04}" for number in range(nccl_metrics.MAX_JOB_REPORTS + 7)]
    node.write(b"".join(metrics(name, bandwidth=1) for name in names))
    node.find()
    assert len(node.bandwidths) == nccl_metrics.MAX_JOB_REPORTS
    assert node.by_state(c.METRICS_LINES)["excess"] == 7


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
