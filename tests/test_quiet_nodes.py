"""No false alarms: healthy servers, with the agent's real pages and all real rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agent_hours import Samples, node_of_1970, scraped_series
from support.evaluated_alerts import Labels, alerts, metrics_of_rules

METRICS = metrics_of_rules()
WHOLE = {"gpus": 8}
MINUTES = pytest.mark.parametrize(
    "minutes",
    [
        pytest.param(10, marks=pytest.mark.journey),
        pytest.param(60, marks=pytest.mark.thorough),
    ],
)
KINDS: dict[str, dict[str, Any]] = {
    "of Kubernetes, with MIG": {"mode": "mig", "scheduler": "kubernetes", "model": "h200"},
    "of Kubernetes, with MPS": {"mode": "mps", "scheduler": "kubernetes"},
    "with virtual GPUs": {"mode": "vgpu", "model": "l40s"},
    "that hands GPUs over": {"mode": "passthrough"},
    "with A100 and Slurm": {"model": "a100", "scheduler": "slurm"},
    "with GB200": {"model": "gb200"},
    "with T4": {"model": "t4"},
    "with bnxt_en cards": {"nic": "bnxt"},
    "with cards of two kinds": {"nic": "mixed"},
}


async def seen(
    directory: Path, minutes: int, scenario: str = "training", **what: Any
) -> tuple[list[list[Labels]], dict[str, Samples]]:
    """The alerts of every minute, but for the one that always fires; and the series behind them."""
    series = await scraped_series(node_of_1970("n1", scenario, **what), minutes, METRICS)
    found = alerts(series, minutes, directory)
    assert all([a["alertname"] for a in now].count("RailscopeDeadMansSwitch") for now in found[1:])
    every = [[a for a in now if a["alertname"] != "RailscopeDeadMansSwitch"] for now in found]
    return every, series


def rises(series: dict[str, Samples], metric: str) -> int:
    """Number of series of a counter that have grown by the end."""
    own = [s for name, s in series.items() if name.startswith(f"{metric}{{")]
    return sum(float(s[-1] or 0) > float(s[0] or 0) for s in own)


@pytest.mark.timeout(400)
@MINUTES
async def test_training_raises_nothing(tmp_path: Path, minutes: int) -> None:
    found, series = await seen(tmp_path, minutes, scheduler="slurm", **WHOLE)
    assert found == [[]] * (minutes + 1)
    assert len(series) > 800
    for metric in ("nic_receive_pfc_pause_seconds", "rdma_ecn_marked_packets"):
        assert rises(series, f"railscope_{metric}_total") >= 8, (
            "the usual pause and marks are there"
        )
    assert sum(name.startswith("railscope_gpu_health{") for name in series) == 8


@pytest.mark.thorough
@pytest.mark.timeout(400)
async def test_a_time_without_a_job_raises_nothing(tmp_path: Path) -> None:
    found, series = await seen(tmp_path, 30, "idle", **WHOLE)
    assert found == [[]] * 31
    assert len(series) > 800
    assert rises(series, "railscope_rdma_ecn_marked_packets_total") == 0


@pytest.mark.thorough
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_healthy_server_raises_nothing(tmp_path: Path, kind: str) -> None:
    found, series = await seen(tmp_path, 30, gpus=2, **KINDS[kind])
    assert found == [[]] * 31
    assert len(series) > 300


@pytest.mark.thorough
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scenario", ["counter_reset", "link_flap"])
async def test_a_short_fault_raises_no_alert(tmp_path: Path, scenario: str) -> None:
    found, _ = await seen(tmp_path, 30, scenario, gpus=2)
    assert [a for now in found for a in now if a["alertstate"] == "firing"] == []
