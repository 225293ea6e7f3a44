"""A walk through a capture: read offsets, clock, and access to earlier events."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.cases import CASES, capture_of
from support.metric_samples import sample, samples

from railscope.capture import Capture, CaptureMetadata, CaptureMoment
from railscope.exposition import TextFormat
from railscope_agent.commands import agent
from railscope_agent.commands.read_once import MAX_READS, CaptureWalk, find_read_offsets
from railscope_agent.config import AgentSettings
from railscope_agent.host.recorded_host import RecordedClock
from railscope_agent.service import Agent

NS = 10**9
GPU = "GPU-895f3d94-b02d-48a6-a43b-61d5471207e8"


def capture(*offsets_ns: int, duration_ns: int) -> Capture:
    about = CaptureMetadata("n", "b", 1_760_000_000 * NS, 777 * NS, duration_ns, "test")
    return Capture(about, tuple(CaptureMoment(offset_ns) for offset_ns in offsets_ns))


@given(st.lists(st.integers(0, 100 * NS), max_size=60).map(sorted), st.integers(0, 100 * NS))
def test_checked_instants_are_few_ordered_and_end_with_the_capture(
    offsets_ns: list[int], duration_ns: int
) -> None:
    found = find_read_offsets(capture(*offsets_ns, duration_ns=duration_ns))
    assert 1 <= len(found) <= MAX_READS
    assert found == sorted(set(found))
    assert found[-1] == duration_ns
    assert set(found[:-1]) <= set(offsets_ns)


async def test_the_clock_stands_and_never_goes_back() -> None:
    clock = RecordedClock(capture(duration_ns=60 * NS).about)
    start = clock.now()
    assert (start.wall_ns, start.boot_ns) == (1_760_000_000 * NS, 777 * NS)
    clock.go_to(30 * NS)
    await clock.sleep_until(start.boot_ns + 31 * NS)
    clock.go_to(30 * NS)
    now = clock.now()
    assert (now.wall_ns - start.wall_ns, now.boot_ns - start.boot_ns) == (31 * NS, 31 * NS)


async def test_growth_in_a_capture_needs_its_walk_and_not_only_its_end() -> None:
    walk = CaptureWalk(capture_of("nvlink-errors"))
    walked = Agent(AgentSettings(), walk.host, "n")
    await walk.read(walked)
    recovering = sample("railscope_gpu_health_reason_active", gpu=GPU, reason="nvlink_recovering")
    assert samples(walked.endpoint.text(TextFormat.PROMETHEUS))[recovering] == 1
    looked = Agent(AgentSettings(), walk.host, "n")
    await looked.once()
    assert recovering not in samples(looked.endpoint.text(TextFormat.PROMETHEUS))


@pytest.mark.parametrize(
    ("case", "code", "expected"),
    [
        ("lost-gpu", 1, "failed: gpu_lost (NVML reports the GPU as lost"),
        ("dgx-a100", 0, "health of GPUs: 2 GPUs by 36 rules: 2 healthy"),
    ],
)
def test_a_check_of_a_capture_reports_the_faults_of_its_gpus(
    case: str, code: int, expected: str
) -> None:
    outcome = CliRunner().invoke(agent, ["check", "--replay", str(CASES / case)])
    assert (outcome.exit_code, expected in outcome.output) == (code, True), outcome.output
