"""Replay of captures with the columns of some metrics only."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.cases import CASES, few_of, names
from support.reading import readings

from railscope.catalog import entities, gpu, nic, nvlink
from railscope.frame import Frame
from railscope_agent.commands import agent
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.diagnosis.quantities import QUANTITIES

DIAGNOSED = frozenset(quantity.metric for quantity in QUANTITIES.values())
SUMS = frozenset({
    gpu.GPU_BUSY.name, gpu.GPU_ALL_THROTTLE_TIME.name, nic.ALL_PRIORITIES_DISCARDS.name,
    nvlink.GPU_NVLINK_ERRORS.name,
})  # fmt: skip
"""Metrics whose readings are computed from those of others."""
NAMED = {entities.GPU, entities.NIC, entities.RDMA_PORT, entities.PCIE, entities.NIC_NEIGHBOUR}


def frames_of(case: str, metrics: frozenset[str]) -> list[Frame]:
    replay = CaptureReplay(CASES / case, AgentSettings(), (), metrics)
    return [frame for sample in replay.samples() for frame in sample]


@pytest.mark.parametrize("case", few_of(names()))
def test_selected_columns_have_the_readings_of_a_complete_replay(case: str) -> None:
    complete = frames_of(case, frozenset())
    for metrics in (DIAGNOSED, SUMS):
        check_selected(complete, frames_of(case, metrics), metrics)


def check_selected(complete: list[Frame], selected: list[Frame], metrics: frozenset[str]) -> None:
    """Check that a replay of some metrics has the readings and devices of a complete one."""
    streams = {
        frame.schema.stream
        for frame in complete
        if any(metric.name in metrics for metric, _ in frame.schema.columns)
    }
    wanted = [frame for frame in complete if frame.schema.stream in streams]
    found = [frame for frame in selected if frame.schema.stream in streams]
    for expected, frame in zip(wanted, found, strict=True):
        assert frame.schema.stream == expected.schema.stream
        assert frame.timestamp == expected.timestamp
        assert frame.events == expected.events
        chosen = {
            column: reading
            for column, reading in readings(expected).items()
            if column[0] in metrics
        }
        # A source of which no column is selected now keeps one: without any, it would be unsupported.
        assert readings(frame) == chosen or (not chosen and len(readings(frame)) == 1)
        named, all_named = (
            {entity for entity in each.schema.entities if entity.kind in NAMED}
            for each in (frame, expected)
        )
        assert named == all_named


def test_an_unknown_metric_is_rejected() -> None:
    arguments = ["replay", "--metric", "railscope_gpu_utilisation", str(CASES / "t4")]
    result = CliRunner().invoke(agent, arguments)
    assert result.exit_code
    problem = str(result.exception or result.output)
    assert "unknown metric: railscope_gpu_utilisation: expected a metric of the catalog" in problem
