"""Series of textfiles through a collector: exact values on the page of a node, and bounds of schemas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from makers import FrameSender
from running_collector import run_collector, settings_in
from support.textfiles import TextfileDirectory, values_of

from railscope.frame import Frame, FrameOrigin
from railscope_collector.config import IngestLimits

CASES = sorted(
    path.resolve()
    for path in (Path(__file__).parents[1] / "agent" / "textfiles").iterdir()
    if path.is_dir()
)


def as_sent(frame: Frame, sender: FrameSender, at: int = 0) -> Frame:
    """Return a frame of a textfile source as a frame of a sender."""
    (like,) = sender.frames(frame.schema, [list(frame.values)], at=at, reasons=frame.reasons)
    return replace(like, origin=FrameOrigin(sender.node, sender.run, sender.boot_id))


async def test_the_collector_has_every_value_that_the_files_state(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path, limits=IngestLimits())) as running:
        for number, case in enumerate(CASES):
            directory, sender = TextfileDirectory(case), FrameSender(run=f"run-{number}")
            frame = as_sent(directory.read(), sender, at=number)
            status, reply = await running.post(sender.body([frame], schemas=True), at=number)
            assert status == 200, reply
            stream = (await running.json("/api/v1/nodes/n1"))["streams"]["textfile"]
            compare(stream, directory)


def compare(stream: Any, directory: TextfileDirectory) -> None:
    """Check that a stream has what the files state."""
    text = "".join(f"{row['series']} {row['value']}\n" for row in stream.get("series", ()))
    assert values_of(text) == values_of(directory.page())
    metrics = [row["metric"] for row in stream["readings"]]
    assert not any("mantissa" in metric for metric in metrics)
    assert metrics.count("railscope_textfile_state") == len(directory.states())


async def test_an_absent_series_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    files = TextfileDirectory(tmp_path / "files")
    files.write({"a.prom": "a 1\n"})
    frame = files.read()
    sender = FrameSender()
    gone = replace(as_sent(frame, sender), reasons=bytes([3] * len(frame.values)))
    async with run_collector(settings_in(tmp_path)) as running:
        assert (await running.post(sender.body([gone], schemas=True), at=0))[0] == 200
        node = await running.json("/api/v1/nodes/n1")
    assert node["streams"]["textfile"]["series"] == [{"series": "a", "absent": "gone"}]
