"""Captures: a capture reads back as it was written, and the error of a damaged one names the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope.capture import (
    Capture,
    CaptureError,
    CaptureMetadata,
    CaptureMoment,
    CaptureTimeline,
    read_capture,
)
from railscope.untrusted_text import MAX_BYTES

ABOUT = CaptureMetadata(
    node='gpu-1 "quoted"\\',
    boot_id="b",
    started_wall_ns=5,
    started_boot_ns=3,
    duration_ns=2,
    origin="test",
    hardware="8 x H100",
    redacted=True,
)
MOMENTS = (
    CaptureMoment(
        0, files={"/proc/stat": "cpu 1\n"}, names={"/sys": ["a", "b"]}, links={"/a": "/b"}
    ),
    CaptureMoment(
        7, calls={"nvml.nvmlDeviceGetName(0)": {"error": ["nvml", 15]}}, log=["6,1,2,-;x"]
    ),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    Capture(ABOUT, MOMENTS).write(tmp_path / "capture")
    return tmp_path / "capture"


def test_a_capture_reads_back_as_it_was_written(directory: Path) -> None:
    assert read_capture(directory) == Capture(ABOUT, MOMENTS)


@pytest.mark.parametrize(
    "line",
    [
        '{"t":9,"files":{"/a":"1"',
        "",
        "[]",
        "5",
        "null",
        '{"files":{}}',
        '{"t":"soon"}',
        '{"t":9,"files":["/a"]}',
        '{"t":9,"log":"text"}',
        '{"t":9,"unheard_of":{}}',
    ],
    ids=["cut", "empty", "list", "number", "null", "no time", "time", "files", "log", "section"],
)
def test_a_damaged_line_is_named(directory: Path, line: str) -> None:
    timeline = directory / "timeline.jsonl"
    first, second = timeline.read_text().splitlines()
    timeline.write_text(f"{first}\n{line}\n{second}\n")
    with pytest.raises(CaptureError, match=rf"failed: {timeline}: damaged line 2"):
        read_capture(directory)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"format = 2", "expected 1"),
        (b"node = 'x'", "format"),
        (b"format = 1", "missing required field"),
        (b"format = ", "reading the capture failed"),
        (b"\xff\xfe\0", "reading the capture failed"),
        pytest.param(b"format = 1\n#".ljust(MAX_BYTES + 1), f"at most {MAX_BYTES}", id="too long"),
    ],
)
def test_a_damaged_head_is_named(directory: Path, content: bytes, problem: str) -> None:
    (directory / "capture.toml").write_bytes(content)
    with pytest.raises(CaptureError, match=problem) as rejected:
        read_capture(directory)
    assert str(directory) in str(rejected.value)


STATES = st.lists(st.tuples(st.integers(0, 50), st.sampled_from("ab"), st.integers()), min_size=1)


@given(STATES, st.lists(st.integers(-5, 60), min_size=1, max_size=6))
def test_a_timeline_shows_what_was_last_recorded(
    changes: list[tuple[int, str, int]], offsets: list[int]
) -> None:
    ordered = sorted(changes, key=lambda change: change[0])
    timeline = CaptureTimeline(
        [CaptureMoment(at, calls={key: value}) for at, key, value in ordered]
    )
    for offset in offsets:  # in any order: a recording may start over
        for key in "ab":
            output = [value for at, name, value in ordered if name == key and at <= offset]
            if output:
                assert timeline.result_at("calls", key, offset) == output[-1]
            else:
                with pytest.raises(KeyError):
                    timeline.result_at("calls", key, offset)
