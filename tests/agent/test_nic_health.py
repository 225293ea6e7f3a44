"""Faults of NICs that `agent check` finds in captures, and evidence about the NICs of a node."""

from __future__ import annotations

from array import array

import pytest
from captures.make import simulated
from click.testing import CliRunner
from support.cases import CASES, CaseSimulation, CaseSources, capture_of, names, read_case
from support.nic_health import healthy, labels, now, reasons_of_nics
from support.reading import ORIGIN

from railscope.catalog import entities, host, nic as n
from railscope.frame import Entity, Frame, NodeTimestamp, Schema
from railscope.reading import Absent
from railscope_agent.commands import agent
from railscope_agent.health import judge
from railscope_agent.health.fact_collector import NIC_RULES, FactCollector
from railscope_agent.health.nic_link_rules import findings_of_unused_ports
from railscope_agent.health.rule import HEALTHY, UNKNOWN
from railscope_agent.sampling.probe_result import ProbeVerdict


def network_cases() -> list[str]:
    """Return the cases about NICs."""
    simulations = {name: read_case(CASES / name).simulation for name in names()}
    return [name for name, of in simulations.items() if of and of.sources is CaseSources.NETWORK]


@pytest.mark.parametrize("case", network_cases())
def test_the_reasons_against_nics_are_those_of_the_case(case: str) -> None:
    expected = read_case(CASES / case).nic_reasons
    assert reasons_of_nics(capture_of(case)) == {nic: sorted(of) for nic, of in expected.items()}


def test_the_command_reports_a_faulty_nic_with_its_names_and_the_remedy() -> None:
    case = CASES / "port-trained-down"
    outcome = CliRunner().invoke(agent, ["check", "--replay", str(case)])
    (line,) = [each for each in outcome.stdout.splitlines() if each.startswith("BROKEN  NIC")]
    assert outcome.exit_code == 1
    assert line.startswith(
        "BROKEN  NIC ens4f0np0 (mlx5_5, rail 3): degraded: link_speed_low (200 Gb/s on 2 lanes, expected 400 Gb/s), "
    )
    assert "         -> replace the cable; check the switch port" in outcome.stdout
    assert "health of NICs: 6 NICs by 22 rules: 5 healthy, 1 degraded" in outcome.stdout


def test_ports_without_evidence_of_a_use_are_listed_as_absent() -> None:
    unused = (now(host.LINK_UP, 0), labels(role=""), now(n.RDMA_RECEIVED, 0), now(n.RECEIVED, 0))
    nics = {"eth0": healthy(), "eth1": healthy(*unused), "eth2": healthy(now(host.LINK_UP, 0))}
    (finding,) = findings_of_unused_ports(nics)
    assert finding.verdict is ProbeVerdict.ABSENT
    assert finding.detail.startswith("1 NIC without carrier")
    assert finding.detail.endswith(": eth1")
    assert findings_of_unused_ports({"eth0": healthy(), "eth2": nics["eth2"]}) == []
    many = findings_of_unused_ports({f"eth{n}": healthy(*unused) for n in range(20)})
    assert many[0].detail.endswith("eth15, ...")


def test_a_source_that_was_denied_for_a_nic_is_unknown_for_it_alone() -> None:
    nics = [
        Entity(entities.NIC, (name,), {"role": "compute", "rdma_device": name})
        for name in ("a", "b")
    ]
    facts = FactCollector()
    for stream, metric, shown in (("link", host.LINK_UP, nics), ("nic", n.RECEIVED, nics[:1])):
        columns = tuple((metric, nic) for nic in shown)
        values = array("q", [1] * len(columns))
        facts.add(Frame(ORIGIN, Schema(stream, columns), 1, NodeTimestamp(0, 1), values))

    def states() -> list[int]:
        return [judge(of, NIC_RULES).state for of in facts.nics().values()]

    assert states() == [HEALTHY, HEALTHY]
    facts.partial = {"nic": Absent.DENIED}
    assert states() == [HEALTHY, UNKNOWN]
    facts.absent = {"link": Absent.TIMEOUT}
    assert states() == [UNKNOWN, UNKNOWN]


def test_an_rdma_device_that_another_one_of_its_function_replaces_is_no_nic() -> None:
    """A bond is dissolved: the driver makes an RDMA device for each port again."""
    facts = FactCollector()
    for second, devices in enumerate((("bond_0", "bond_0"), ("mlx5_0", "mlx5_1"))):
        places = [{"pci_address": f"0000:3b:00.{port}"} for port in range(2)]
        ports = {
            device: Entity(entities.RDMA_PORT, (device, "1"), place)
            for device, place in zip(reversed(devices), reversed(places), strict=True)
        }
        nics = [
            Entity(entities.NIC, (f"eth{port}",), {**places[port], "rdma_device": device})
            for port, device in enumerate(devices)
        ]
        schema = Schema("rdma", (), (*nics, *ports.values()))
        facts.add(Frame(ORIGIN, schema, 1, NodeTimestamp(0, second), array("q")))
    assert set(facts.nics()) == {"eth0", "eth1"}


# Simulated nodes -----------------------------------------------------------------------------------

NETWORK_SCENARIOS = {
    "pause_storm": "pfc_storm",
    "link_down": "link_down",
    "link_flap": "link_flap",
    "flapping": "link_flap",
    "speed_down": "link_speed_low",
    "optics": "transceiver_degraded",
    "nic_lost": "nic_lost",
    "pcie_degraded": "pcie_degraded",
    "settings_drift": "settings_differ",
}
HARMLESS = [(scenario, "cx7") for scenario in ("training", "idle", "counter_reset", "unclaimed")] + [
    ("training", nic) for nic in ("bnxt", "irdma", "mixed")
]  # fmt: skip
AFFECTED = "ens4f0np0"


def simulate(scenario: str, nic: str = "cx7") -> dict[str, list[str]]:
    """Return the reasons against the NICs of a simulated node."""
    simulation = CaseSimulation(
        scenario=scenario,
        model="h100",
        gpus=4,
        nic=nic,
        sources=CaseSources.NETWORK,
        step_seconds=5,
        moments=6,
    )
    return dict(reasons_of_nics(simulated("node", simulation)))


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", NETWORK_SCENARIOS)
def test_every_network_scenario_has_its_reason(scenario: str) -> None:
    found = simulate(scenario)
    assert NETWORK_SCENARIOS[scenario] in found[AFFECTED]
    assert scenario == "settings_drift" or set(found) == {AFFECTED}


@pytest.mark.thorough
@pytest.mark.parametrize(("scenario", "nic"), HARMLESS)
def test_a_harmless_scenario_has_none(scenario: str, nic: str) -> None:
    assert simulate(scenario, nic) == {}
