"""Series of textfiles through a collector: exact values on the page of a node, and bounds of schemas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from makers import FrameSender
from running_collector import run_collector, settings_in
from support.textfiles import TextfileDirectory, values_of

from railscope import wire
from railscope.envelopes import MAX_SCHEMA_BYTES
from railscope.frame import Frame, FrameOrigin
from railscope_collector.config import IngestLimits

CASES = sorted(
    path.resolve()
    for path in (Path(__file__).parents[1] / "agent" / "textfiles").iterdir()
    if path.is_dir()
)


def as_sent(frame: Frame, sender: FrameSender) -> Frame:
    """Return a frame of a textfile source as a frame of a sender."""
    (like,) = sender.frames(frame.schema, [list(frame.values)], at=0, reasons=frame.reasons)
    return replace(like, origin=FrameOrigin(sender.node, sender.run, sender.boot_id))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_the_collector_has_every_value_that_the_files_state(
    case: Path, tmp_path: Path
) -> None:
    directory, sender = TextfileDirectory(case), FrameSender()
    body = sender.body([as_sent(directory.read(), sender)], schemas=True)
    async with run_collector(settings_in(tmp_path, limits=IngestLimits())) as running:
        status, reply = await running.post(body, at=0)
        assert status == 200, reply
        stream = (await running.json("/api/v1/nodes/n1"))["streams"]["textfile"]
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


def test_the_largest_schema_is_within_the_bounds_of_an_envelope(tmp_path: Path) -> None:
    """Every series has a metric of its own, and the names of the files are as long as names can be."""
    files = TextfileDirectory(tmp_path, max_series=8000)
    for label in ("", "x" * 36, "é" * 18):
        content = {
            f"{'n' * 246}{file:03}.prom": "".join(
                f's{file:03}_{n:02}{{a="{label}"}} {n}.5\n' for n in range(40)
            )
            for file in range(200)
        }
        files.write(content)
        assert set(files.states().values()) == {"ok"}
        frame = files.read()
        schema = wire.to_wire_schema(frame.schema)
        assert len(frame.values) < wire.MAX_COLUMNS
        assert 15_000 < len(schema.entities) < wire.MAX_COLUMNS
        assert len(msgspec.msgpack.encode(schema)) < MAX_SCHEMA_BYTES
    longer = {name: text.replace("é", "éé") for name, text in content.items()}
    files.write(longer)
    assert set(files.states().values()) == {"ok", "limit"}
    assert len(msgspec.msgpack.encode(wire.to_wire_schema(files.read().schema))) < MAX_SCHEMA_BYTES
