"""Settings of GPUs that differ from those of their peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railscope.catalog import gpu, gpu_sharing
from railscope_agent.health import format_verdict, judge
from railscope_agent.health.health_facts import HealthFacts
from railscope_agent.health.rule import HEALTHY, UNKNOWN
from railscope_agent.health.setting_rules import GPU_SETTING_RULES

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


def with_mig(facts: HealthFacts, devices: int) -> HealthFacts:
    """Return a GPU in MIG mode, with this number of devices."""
    mig = {gpu_sharing.GPU_MIG_MODE: {(): 1}, gpu_sharing.GPU_MIG_DEVICES: {(): devices}}
    return replace(facts, readings={**facts.readings, **mig})


def test_a_gpu_in_mig_mode_is_degraded_only_without_devices_among_whole_gpus() -> None:
    whole = replace(gpu_facts(), readings={gpu_sharing.GPU_MIG_MODE: {(): 0}})
    among_whole = replace(gpu_facts(), peers=(whole,) * 3)
    assert judge(with_mig(among_whole, 0), GPU_SETTING_RULES).reasons == ("mig_unused",)
    assert not judge(with_mig(among_whole, 2), GPU_SETTING_RULES).reasons
    among_partitioned = replace(gpu_facts(), peers=(with_mig(whole, 2),) * 3)
    assert not judge(with_mig(among_partitioned, 0), GPU_SETTING_RULES).reasons


def test_settings_that_half_of_the_gpus_have_are_a_choice() -> None:
    peers = (gpu_facts(500),) * 3 + (gpu_facts(),) * 4
    assert not judge(replace(gpu_facts(500), peers=peers), GPU_SETTING_RULES).reasons


def test_a_gpu_without_known_settings_is_unknown() -> None:
    assert judge(HealthFacts(), GPU_SETTING_RULES).state == UNKNOWN
