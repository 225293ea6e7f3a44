"""Logs of NCCL Inspector that jobs write: owners, links, floods, truncated and replaced files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clock import START
from support.inspector_logs import (
    COMMUNICATOR,
    InspectorDirectory,
    collective,
    header,
    marked_lines,
    metadata,
    own_pid,
    straggling,
    text,
    whole_lines,
)
from support.reading import ORIGIN

from railscope.capture import Capture, CaptureMetadata
from railscope.catalog import collectives as c
from railscope_agent.collectives.inspector import MAX_PART_BYTES
from railscope_agent.host.recorded_host import MomentAnswers, RecordedClock, RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources import nccl_inspector


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


def test_lines_of_kinds_and_ranks_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    node = InspectorDirectory(tmp_path, job="other")
    node.append(1, many_communicators(1, nccl_inspector.MAX_JOB_ENTITIES))
    node.read(2)
    assert len(node.results.readings) == nccl_inspector.MAX_JOB_ENTITIES
    assert node.lines["excess"] == nccl_inspector.MAX_JOB_ENTITIES // 2


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
    clock, answers = RecordedClock(about), MomentAnswers()
    replay = RecordedHost(Capture(about, ()), clock, lambda: clock.offset_ns, answers)
    again = InspectorDirectory(tmp_path / "run/railscope/nccl-inspector", root=tmp_path)
    again.reader = SourceReader(again.source, replay, ORIGIN)
    for moment in recording.moments:
        clock.go_to(moment.offset_ns)
        assert not answers.advance(moment), "a part of a log is no new device"
        if moment.calls:
            again.read()
    again.close()
    assert (again.totals, again.lines, again.files) == (node.totals, node.lines, node.files)
    assert again.lines == {"read": 36, "malformed": 4}
    assert again.totals[f"{COMMUNICATOR} 2"][1] == 6
    texts = "".join(moment.to_line() for moment in recording.moments)
    assert ("gpu-node" in texts) is (redactor is None)
