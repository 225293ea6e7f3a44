"""Settings of GPUs that differ from those of their peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.health import format_verdict, judge
from agent.health.rule import HEALTHY, UNKNOWN, HealthFacts
from agent.health.setting_rules import GPU_SETTING_RULES
from railscope.catalog import gpu

MODES = {
    "persistence": "on", "compute_mode": "default", "ecc": "on", "ecc_pending": "on", "mig": "off", "mig_pending": "off",
}  # fmt: skip
LABELS = {"model": "NVIDIA H100 80GB HBM3", "vbios": "96.00.89", "driver": "590.48.01"}


def gpu_facts(watts: int = 700, peers: int = 0, **changed: str) -> HealthFacts:
    """Return a GPU with its peers; `changed` are modes or labels."""
    return HealthFacts(
        {gpu.GPU_POWER_LIMIT: {(): 1000 * watts}},
        labels={name: changed.get(name, text) for name, text in LABELS.items()},
        settings={name: changed.get(name, text) for name, text in MODES.items()},
        peers=(gpu_facts(),) * peers if peers else (),
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (gpu_facts(peers=7), ""),
        (gpu_facts(500, peers=7), "power_limit_differs (power limit 500 W, peers 700 W)"),
        (gpu_facts(500, peers=2), ""),
        (gpu_facts(peers=3, persistence="off"), "modes_differ (persistence off, peers on)"),
        (gpu_facts(peers=3, mig="on", mig_pending="on"), ""),
        (gpu_facts(peers=3, vbios="96.00.01"), "software_differs (vbios 96.00.01, peers 96.00.89)"),
        (gpu_facts(ecc_pending="off"), "mode_pending (ecc is on, off after a reset)"),
    ],
)
def test_a_gpu_that_differs_from_most_of_its_peers_is_degraded(
    facts: HealthFacts, expected: str
) -> None:
    verdict = judge(facts, GPU_SETTING_RULES)
    assert expected in format_verdict(facts, verdict, GPU_SETTING_RULES)
    assert (verdict.state == HEALTHY) is (not expected)


def test_settings_that_half_of_the_gpus_have_are_a_choice() -> None:
    peers = (gpu_facts(500),) * 3 + (gpu_facts(),) * 4
    assert not judge(replace(gpu_facts(500), peers=peers), GPU_SETTING_RULES).reasons


def test_a_gpu_without_known_settings_is_unknown() -> None:
    assert judge(HealthFacts(), GPU_SETTING_RULES).state == UNKNOWN
