"""`agent once`: the same readings in each of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.cases import CASES
from support.metric_samples import Sample, sample, samples
from support.rdma_nics import INFINIBAND
from support.tree import HOSTNAME, make_tree

from railscope.catalog import METRICS, MetricKind
from railscope_agent.commands import agent

NUMBERS = {MetricKind.COUNTER, MetricKind.GAUGE}
OWN = ("railscope_agent_", "railscope_source_", "railscope_governor_")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = make_tree(tmp_path)
    (root / INFINIBAND[1:] / "mlx5_1/ports/1/counters/port_xmit_packets").write_text("garbage")
    return root


def once(root: Path, *arguments: str) -> str:
    outcome = CliRunner().invoke(agent, ["once", "--root", str(root), *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def machine(page: str) -> dict[Sample, float]:
    """Return the samples of the node, without those of the agent."""
    return {label: v for label, v in samples(page).items() if not label[0].startswith(OWN)}


def test_both_text_formats_have_the_same_content(root: Path) -> None:
    plain, openmetrics = once(root), once(root, "--format", "openmetrics")
    assert machine(openmetrics) == machine(plain)
    assert openmetrics.endswith("# EOF\n")
    info = next(dict(labels) for name, labels in machine(plain) if name == "railscope_node_info")
    assert (info["hostname"], info["kernel"]) == (HOSTNAME, "6.8.0")


def test_json_has_the_same_content_and_absence_reasons(root: Path) -> None:
    entries = json.loads(once(root, "--format", "json"))
    found = {
        sample(entry["metric"], **entry["labels"]): entry["value"]
        for entry in entries
        if "value" in entry and METRICS[entry["metric"]].kind in NUMBERS
    }
    page = machine(once(root, "--detail", "full"))
    numbers = {label: v for label, v in page.items() if METRICS[label[0]].kind in NUMBERS}
    assert {label: v for label, v in found.items() if not label[0].startswith(OWN)} == numbers
    absent = {(e["metric"], *e["labels"].values()): e["absent"] for e in entries if "absent" in e}
    assert absent["railscope_rdma_transmit_packets_total", "mlx5_1", "1"] == "error"


def named(case: str) -> dict[str, list[dict[str, str]]]:
    """The devices of entries by a label that names one."""
    outcome = CliRunner().invoke(agent, ["once", "--replay", str(CASES / case), "--format", "json"])
    entries = json.loads(outcome.output)
    return {
        label: [e["device"] for e in entries if label in e["labels"] and "device" in e]
        for label in ("gpu", "interface", "device", "pci_address")
    }


def test_json_names_every_nic_in_every_way() -> None:
    found = named("hgx-h100-roce-idle")
    nics = {(one["interface"], one["device"], one["rail"]) for one in found["interface"]}
    assert ("ens1f0np0", "mlx5_0", "0") in nics
    ports = {(one["interface"], one["device"], one["rail"]) for one in found["device"]}
    assert ("ens1f0np0", "mlx5_0", "0") in ports
