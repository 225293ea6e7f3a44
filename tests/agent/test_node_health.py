"""The verdict on a node and on jobs, from captures: the judged devices, and absent readings."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.cases import CASES
from support.health_agents import ReadCapture, answering
from support.nic_health import reasons_of_nics

from railscope.capture import read_capture
from railscope.health_verdict import NodeVerdict
from railscope.timestamps import SECOND_NS
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.health.node_health import GPU_SOURCE, NIC_RULES, NodeHealth
from railscope_agent.service import Agent

VERDICTS = {
    "hgx-h100-idle": ("healthy", "healthy GPUs: 1, healthy NICs: 0"),
    "lost-gpu": ("failed", "GPU 3: GPU lost; reboot the node"),
    "hung-gpu": ("failed", "GPU 3: fatal Xid; reboot the node"),
    "pending-row-remap": ("degraded", "GPU 0: memory row to be replaced at a reset; reset the GPU"),
    "nic-lost": ("failed", "NIC ens4f0np0: NIC lost +5 more; reboot the node"),
    "h200-mig": ("healthy", "healthy GPUs: 1, healthy NICs: 0"),
}


@pytest.fixture(name="read", scope="module")
def _read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Agent]:
    """Return the agents that have read a capture, each once."""
    return cache(lambda name: ReadCapture(name, tmp_path_factory.mktemp(name)).agent)


@pytest.mark.parametrize("name", list(VERDICTS))
def test_each_capture_has_its_verdict(name: str, read: Callable[[str], Agent]):
    agent = read(name)
    verdict = agent.health.judge(agent.clock.now().boot_ns, None, "")
    assert (verdict.state, verdict.reason.removeprefix("railscope: ")) == VERDICTS[name]


def test_gpus_that_no_driver_owns_are_unknown(read: Callable[[str], Agent]):
    """As after a start without the driver: nothing of them can be read."""
    agent = read("nic-lost")
    verdict = agent.health.judge(agent.clock.now().boot_ns, None, "")
    unbound = [gpu for gpu in verdict.devices if gpu.reasons == ("no_verdict (unbound)",)]
    assert len(unbound) == 4
    assert {(gpu.kind, gpu.state) for gpu in unbound} == {("GPU", "unknown")}
    assert len({gpu.pci_address for gpu in unbound} - {""}) == 4


def test_readings_that_are_too_old_are_unknown(read: Callable[[str], Agent]):
    agent = read("nic-lost")
    late_ns = agent.clock.now().boot_ns + 3600 * SECOND_NS
    verdict = agent.health.judge(late_ns, None, "")
    assert verdict.state == "unknown"
    assert {device.state for device in verdict.devices} == {"unknown"}
    assert verdict.nics == len([device for device in verdict.devices if device.kind == "NIC"])


def test_an_agent_without_readings_is_unknown():
    walk = CaptureWalk(read_capture(CASES / "hgx-h100-idle"))
    agent = Agent(AgentSettings(), walk.host, walk.host.node)
    assert agent.health.judge(0, None, "").reason == "railscope: GPU all: no verdict (not due)"
    assert NodeHealth(dict).judge(0, None, "").reason == "railscope: no GPU and no NIC to judge"


def test_links_and_paths_of_nics_are_judged_as_by_check(read: Callable[[str], Agent]):
    """Of the rules of `agent check`, those about links and PCIe paths apply."""
    agent = read("port-trained-down")
    verdict = agent.health.judge(agent.clock.now().boot_ns, None, "")
    found = {nic.name: set(nic.reasons) for nic in verdict.devices if nic.kind == "NIC"}
    of_check = reasons_of_nics(read_capture(CASES / "port-trained-down"))
    rules = {rule.reason for rule in NIC_RULES}
    assert found == {name: rules.intersection(reasons) for name, reasons in of_check.items()}
    assert found == {"ens4f0np0": {"link_flap", "link_speed_low", "transceiver_degraded"}}


def test_a_job_is_judged_by_its_gpus_and_the_nics_of_their_rails(tmp_path: Path):
    with answering("lost-gpu", tmp_path) as served:
        now_ns = served.agent.clock.now().boot_ns
        frame = served.agent.sampler.statuses[GPU_SOURCE].frame
        assert frame
        gpus = {e.facts["index"]: e.key[0] for e in frame.schema.entities if "index" in e.facts}

        def judge(*indices: str) -> NodeVerdict:
            return served.agent.health.judge(now_ns, {gpus[i] for i in indices}, "j")

        assert (judge("0").state, judge("0").gpus) == ("healthy", 1)
        assert judge("0", "3").reason == "railscope: GPU 3: GPU lost; reboot the node"
        away = served.agent.health.judge(now_ns, {"GPU-away", gpus["0"]}, "j")
        assert (away.state, away.reason) == (
            "unknown",
            "railscope: GPU GPU-away: no verdict (gone)",
        )


def test_nics_of_other_rails_do_not_concern_a_job(read: Callable[[str], Agent], tmp_path: Path):
    """The GPUs are those of another capture: this one has none."""
    agent = ReadCapture("nic-lost", tmp_path).agent
    gpus = read("lost-gpu")
    now_ns = agent.clock.now().boot_ns
    state = gpus.sampler.statuses[GPU_SOURCE]
    assert state.frame
    stamp = replace(state.frame.timestamp, boot_ns=now_ns)
    fresh = copy(state)
    fresh.frame = replace(state.frame, timestamp=stamp)
    agent.sampler.statuses[GPU_SOURCE] = fresh
    by_rail = {e.facts["rail"]: e.key[0] for e in state.frame.schema.entities if "rail" in e.facts}
    lost = agent.health.judge(now_ns, None, "")
    (nic,) = [device for device in lost.devices if device.kind == "NIC"]
    assert nic.reasons == ("nic_lost", "nic_failed")
    on_rail = agent.health.judge(now_ns, {by_rail[nic.rail]}, "j")
    other = agent.health.judge(now_ns, {by_rail[rail] for rail in by_rail if rail != nic.rail}, "j")
    assert nic in on_rail.devices
    assert (other.state, other.nics) == ("healthy", 3)
