"""Replay of captures to frames on standard output."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.cases import CASES, capture_of
from support.clock import NS
from support.reading import readings

from railscope import envelopes, wire
from railscope.capture import (
    DAMAGED_STATUS,
    PENDING,
    Capture,
    CaptureMetadata,
    CaptureMoment,
)
from railscope.catalog import kernel
from railscope.frame import Frame
from railscope.reading import Absent
from railscope_agent.commands import agent
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings, BurstSettings
from railscope_agent.host.recorded_host import call_key
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

SETTINGS = AgentSettings(bursts=BurstSettings(enabled=False))
POWER = "railscope_gpu_power_watts"
MAX_BYTES = 64 << 20


def replayed(directory: Path, *names: str) -> list[Frame]:
    replay = CaptureReplay(directory, AgentSettings(), names)
    frames = [frame for sample in replay.samples() for frame in sample]
    assert replay.problem is None
    return frames


def written(capture: Capture, directory: Path) -> Path:
    capture.write(directory)
    return directory


def moments_at(*seconds: float) -> Capture:
    """A capture of a node without devices."""
    about = CaptureMetadata("n1", "b", 1_760_000_000 * NS, 777 * NS, 60 * NS, "test")
    return Capture(about, tuple(CaptureMoment(round(at * NS)) for at in seconds))


def replay_command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(agent, ["replay", *map(str, arguments)])


def records(output: bytes) -> Iterator[wire.Envelope]:
    while output:
        (length,) = struct.unpack_from("<I", output)
        yield envelopes.unpack(output[4 : 4 + length], MAX_BYTES)
        output = output[4 + length :]


@pytest.mark.parametrize(
    "case", ["hgx-h100-load", "mixed-node", "nvlink-errors", "slurm-job", "h200-mig", "denied"]
)
async def test_the_last_readings_are_those_of_an_agent_that_reads_the_same_moments(
    case: str,
) -> None:
    walk = CaptureWalk(capture_of(case))
    walked = Agent(SETTINGS, walk.host, "n1")
    await walk.read(walked)
    expected = {
        name: readings(status.frame)
        for name, status in walked.sampler.statuses.items()
        if status.frame and name not in {"agent", "gpu_process"}
    }
    last = {frame.schema.stream: frame for frame in replayed(CASES / case)}
    assert {name: readings(frame) for name, frame in last.items()} == expected


def test_a_call_without_a_result_is_a_timeout_of_its_device_until_it_returns(
    tmp_path: Path,
) -> None:
    capture = simulate(NodeSpec("n1", gpus=2), 12)
    key = call_key("nvml", "nvmlDeviceGetPowerUsage", (1,))
    for moment in capture.moments[2:5]:
        moment.calls[key] = PENDING
    frames = replayed(written(capture, tmp_path / "c"), "gpu")
    power = [
        [reading for (metric, _), reading in readings(frame).items() if metric == POWER]
        for frame in frames
    ]
    hung = [[isinstance(reading, Absent) for reading in of_sample] for of_sample in power]
    assert hung == [[False, at in {2, 3, 4}] for at in range(13)]
    assert all(of_sample[1] is Absent.TIMEOUT for of_sample in power[2:5])


def test_each_source_is_read_at_every_sample_or_at_its_longer_period(tmp_path: Path) -> None:
    capture = simulate(NodeSpec("n1", gpus=1), 33, 3)
    frames = replayed(written(capture, tmp_path / "c"), "gpu", "host", "gpu_health")
    started_ns = capture.about.started_boot_ns
    seconds = {
        name: [
            (frame.timestamp.boot_ns - started_ns) // NS
            for frame in frames
            if frame.schema.stream == name
        ]
        for name in ("gpu", "host", "gpu_health")
    }
    every = list(range(0, 34, 3))
    assert seconds == {"gpu": every, "host": every, "gpu_health": [0, 9, 18, 27]}


def test_messages_of_the_kernel_have_their_recorded_times(tmp_path: Path) -> None:
    capture = moments_at(0, 5)
    text = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    capture.moments[1].log.append(f"3,7,{781_500_000},-;{text}")
    (event,) = (
        event
        for frame in replayed(written(capture, tmp_path / "c"), "kernel")
        for event in frame.events
    )
    assert event.event_class is kernel.XID_EVENT
    about = capture.about
    assert event.boot_ns == 781_500_000_000
    assert event.wall_ns - about.started_wall_ns == event.boot_ns - about.started_boot_ns


def test_the_command_writes_envelopes_with_each_shape_before_its_batches(tmp_path: Path) -> None:
    directories = [
        written(simulate(NodeSpec(name, gpus=1), 70), tmp_path / name) for name in ("n1", "n2")
    ]
    outcome = replay_command(*directories)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    found = list(records(outcome.stdout_bytes))
    assert [envelope.node for envelope in found] == ["n1", "n1", "n2", "n2"]
    assert len({(envelope.node, envelope.run, envelope.boot_id) for envelope in found}) == 2
    assert replay_command(*directories).stdout_bytes == outcome.stdout_bytes
    for name in ("n1", "n2"):
        check_envelopes([envelope for envelope in found if envelope.node == name])


def check_envelopes(found: Sequence[wire.Envelope]) -> None:
    """Check that all frames of one node are there, in order, after their shapes and names."""
    parts: set[bytes] = set()
    expected: dict[str, int] = {}
    batches: list[wire.Batch] = []
    for envelope in found:
        new = {wire.content_hash(part) for part in (*envelope.shapes, *envelope.names)}
        assert parts.isdisjoint(new)
        parts |= new
        for batch in envelope.batches:
            assert parts.issuperset((batch.shape, batch.names))
            assert batch.first_sequence == expected.get(batch.stream, 1)
            expected[batch.stream] = batch.first_sequence + batch.rows
            batches.append(batch)
    assert {"gpu", "rdma", "nic", "host", "gpu_verdict", "kernel"} <= expected.keys()
    assert not {"agent", "gpu_process", "nic_burst", "gpu_burst"} & expected.keys()
    assert expected["gpu"] == 72
    times = [at for batch in batches if batch.stream == "gpu" for at in batch.wall_ns]
    assert all(before < after for before, after in pairwise(times))


def test_a_damaged_capture_is_used_up_to_the_damage_and_the_others_completely(
    tmp_path: Path,
) -> None:
    good = written(moments_at(0, 1, 2), tmp_path / "good")
    damaged = written(moments_at(0, 1, 2), tmp_path / "damaged")
    timeline = damaged / "timeline.jsonl"
    lines = timeline.read_text().splitlines(keepends=True)
    timeline.write_text(lines[0] + lines[1] + lines[2].replace('"t"', '"u"'))
    (damaged / "notes.txt").write_text("of no concern")
    missing = tmp_path / "missing"
    outcome = replay_command("--source", "kernel", damaged, missing, good)
    assert outcome.exit_code == DAMAGED_STATUS
    first, second = outcome.stderr.splitlines()
    assert first.startswith(f"Error: reading the capture failed: {timeline}: damaged line 3: ")
    assert first.endswith("; the samples before it are used")
    assert str(missing / "capture.toml") in second
    assert second.endswith("; the capture is left out")
    rows = [sum(b.rows for b in found.batches) for found in records(outcome.stdout_bytes)]
    assert rows == [2, 3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("capture.toml", "format = 1\n"),
        ("capture.toml", "node = "),
        ("timeline.jsonl", '{"t":-1}\n'),
        ("timeline.jsonl", '{"t":99999999999999999999}\n'),
        ("timeline.jsonl", "\n"),
    ],
)
def test_an_invalid_capture_is_an_error_that_names_the_file(
    tmp_path: Path, name: str, text: str
) -> None:
    capture = written(moments_at(0), tmp_path / "c")
    (capture / name).write_text(text)
    outcome = replay_command("--source", "kernel", capture)
    assert outcome.exit_code == DAMAGED_STATUS
    assert outcome.stderr.startswith("Error: ")
    assert name in outcome.stderr
    assert outcome.stderr.count("\n") == 1
