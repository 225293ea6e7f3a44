"""Captures: a capture reads back as it was written, and the error of a damaged one names the place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope.capture import (
    Capture,
    CaptureError,
    CaptureMetadata,
    CaptureMoment,
    CaptureTimeline,
    NvmlError,
    failure,
    read_capture,
    result,
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


@given(st.binary())
def test_bytes_that_are_not_utf8_are_preserved(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    directory = tmp_path_factory.mktemp("capture")
    text = content.decode(errors="surrogateescape")
    Capture(ABOUT, (CaptureMoment(0, files={"/f": text}),)).write(directory)
    kept = read_capture(directory).moments[0].files["/f"]
    assert kept.encode(errors="surrogateescape") == content


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
    "line", ["[" * 200_000, '{"t":9,"files":{"/a":' + "[" * 200_000], ids=["top", "value"]
)
def test_a_line_that_is_nested_deeply_is_named(directory: Path, line: str) -> None:
    timeline = directory / "timeline.jsonl"
    timeline.write_text(f"{line}\n")
    with pytest.raises(CaptureError, match=rf"{timeline}: damaged line 1: nested too deeply: exp"):
        read_capture(directory)


def test_a_line_that_is_too_long_is_not_read_whole(directory: Path) -> None:
    os.truncate(directory / "timeline.jsonl", 1 << 40)
    with pytest.raises(CaptureError, match=r"damaged line 3: longer than 67108864 bytes: expected"):
        read_capture(directory)


@pytest.mark.parametrize("name", ["timeline.jsonl", "capture.toml"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_a_file_of_another_kind_is_named(directory: Path, name: str, kind: str) -> None:
    path = directory / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(CaptureError, match=rf"{path}: {kind}: expected a regular file$"):
        read_capture(directory)


def test_a_capture_without_its_timeline_is_named(directory: Path) -> None:
    timeline = directory / "timeline.jsonl"
    timeline.unlink()
    with pytest.raises(CaptureError, match=rf"failed: {timeline}: No such file or directory$"):
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


def test_a_number_in_the_head_must_be_one(directory: Path) -> None:
    head = directory / "capture.toml"
    head.write_text(head.read_text().replace("duration_ns = 2", 'duration_ns = "2"'))
    with pytest.raises(CaptureError, match="duration_ns"):
        read_capture(directory)


def test_a_missing_file_is_named(directory: Path) -> None:
    (directory / "timeline.jsonl").unlink()
    with pytest.raises(CaptureError, match=r"timeline\.jsonl"):
        read_capture(directory)
    with pytest.raises(CaptureError, match=r"capture\.toml"):
        read_capture(directory.parent)


@pytest.mark.parametrize("error", [NvmlError(15), PermissionError(13, "no"), OSError(19, "gone")])
def test_failures_come_back_as_failures(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        result(failure(error))
    assert raised.value.args[0] == error.args[0]


def test_a_failure_has_the_message_of_the_system() -> None:
    with pytest.raises(OSError, match="Operation not supported"):
        result({"error": ["os", errno.EOPNOTSUPP]})


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


def test_the_log_of_a_timeline_is_cut_between_instants() -> None:
    timeline = CaptureTimeline(
        [CaptureMoment(0, log=["a"]), CaptureMoment(5, log=["b", "c"]), CaptureMoment(9, log=["d"])]
    )
    assert timeline.log_between(-1, 0) == ["a"]
    assert timeline.log_between(0, 5) == ["b", "c"]
    assert timeline.log_between(0, 4) == []
    assert timeline.log_between(-1, 99) == ["a", "b", "c", "d"]
