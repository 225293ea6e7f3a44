"""The health of NICs: single rules, the case directories, and every scenario of the network."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from captures.make import simulated
from click.testing import CliRunner
from support.cases import CASES, CaseSimulation, CaseSources, capture_of, names, read_case
from support.health import HealthFault, with_faults
from support.nic_health import (
    LINE_BYTES,
    MEGABITS,
    RECEIVED,
    SETTINGS,
    Change,
    alone,
    changed,
    healthy,
    labels,
    now,
    once,
    peers,
    rate,
    reasons_of_nics,
    settings,
)
from support.reading import ORIGIN

from railscope.catalog import (
    cabling,
    entities,
    host,
    kernel,
    nic as n,
    nic_settings as t,
    pcie,
    rdma,
)
from railscope.catalog.declare import Metric
from railscope.frame import Entity, Frame, NodeTimestamp, Schema
from railscope.reading import Absent
from railscope_agent.commands import agent
from railscope_agent.health import format_verdict, judge, nic_signals as s
from railscope_agent.health.health_facts import HealthFacts
from railscope_agent.health.nic_link_rules import findings_of_unused_ports
from railscope_agent.health.node_facts import NIC_RULES, AbsentSources, NodeHealthFacts
from railscope_agent.health.rule import HEALTHY, UNKNOWN
from railscope_agent.sampling.probe_result import ProbeVerdict

HALF = MEGABITS // 2
PAUSING, PAUSED, STALLED = n.PFC_SENT_TIME, n.PFC_RECEIVED_TIME, n.PCIE_WRITE_STALLED
BLOCKS, SYMBOLS = n.FEC_UNCORRECTABLE_BLOCKS, s.PORT_SYMBOL_ERRORS
MICROSECONDS = 10**6


def _pausing(facts: HealthFacts) -> HealthFacts:
    return rate(PAUSING, 0.02 * MICROSECONDS, "3")(facts)


def _paused_in_another_priority(facts: HealthFacts) -> HealthFacts:
    """Return facts with a second lossless priority, which the NIC pauses at the same time."""
    same = facts.change(PAUSING, "3")
    assert not isinstance(same, Absent)
    fault = HealthFault({(PAUSING, ("4",)): 10**12}, {(PAUSING, ("4",)): same})
    return with_faults([fault], facts)


def _counts_link_wide_pause(sent: float, received: float = 0) -> tuple[Change, ...]:
    """Return frames per second of link-wide pause, beside counters of PFC that are 0: bnxt, ice."""
    frames = {n.GLOBAL_PAUSE_SENT: sent, n.GLOBAL_PAUSE_RECEIVED: received}
    zeros = (
        rate(metric, 0, priority) for metric in (n.PFC_SENT, n.PFC_RECEIVED) for priority in "03"
    )
    of_peers = (now(metric, 10**12) for metric in frames)
    counted = (rate(metric, amount) for metric, amount in frames.items())
    return (*zeros, *of_peers, *counted)


def _with_idle_socket(facts: HealthFacts) -> HealthFacts:
    """Return facts with four more peers, of another NUMA node."""
    others = tuple(labels(numa_node="1")(alone()) for _ in range(4))
    return replace(facts, peers=(*facts.peers, *others))


FAULTS: list[tuple[str, tuple[Change, ...]]] = [
    ("nic_lost", (now(pcie.PCIE_GONE, 1),)),
    ("nic_lost", (now(pcie.PCIE_PATH_STATE, 3),)),
    ("nic_too_hot", (now(kernel.DRIVER_REPORT, 1),)),
    ("module_error", (now(kernel.DRIVER_REPORT, 2),)),
    ("send_queue_stuck", (now(kernel.DRIVER_REPORT, 3),)),
    ("nic_failed", (now(kernel.DRIVER_REPORT, 4),)),
    ("pcie_degraded", (now(pcie.PCIE_PATH_STATE, 2),)),
    ("pcie_path_low", (now(pcie.PCIE_PATH_LIMIT, 31 * 10**9 * pcie.PATH_STEPS),)),
    ("pcie_errors", (once(pcie.PCIE_ERRORS, "nonfatal"),)),
    ("pcie_errors", (rate(pcie.PCIE_ERRORS, 1, "correctable"),)),
    ("link_down", (now(host.LINK_UP, 0),)),
    ("link_down", (now(host.LINK_UP, 0), labels(role=""))),
    ("link_down", (now(host.LINK_UP, Absent.UNSUPPORTED), now(rdma.RDMA_UP, 0))),
    ("link_down", (now(host.LINK_UP, 0), peers(number=0), once(n.LINK_DOWNS))),
    ("link_speed_low", (now(host.LINK_SPEED, HALF),)),
    ("link_speed_low", (now(host.LINK_SPEED, HALF), now(t.EXPECTED_SPEED, Absent.UNSUPPORTED))),
    ("link_speed_low", (now(host.LINK_SPEED, HALF), peers(number=0))),
    ("fec_differs", (now(t.FEC_ACTIVE, 1),)),
    ("transceiver_degraded", (rate(n.CORRECTED, LINE_BYTES * 8 * 1e-4),)),
    ("transceiver_degraded", (rate(n.CORRECTED, LINE_BYTES * 8 * 1e-4), peers(number=0))),
    ("transceiver_degraded", (rate(n.UNCORRECTED_SYMBOLS, 1),)),
    ("transceiver_degraded", (now(BLOCKS, 9), rate(BLOCKS, 1))),
    ("transceiver_degraded", (now(SYMBOLS, 9), rate(SYMBOLS, 1))),
    ("transceiver_threshold", (now(cabling.TRANSCEIVER_RECEIVE_POWER, 300_000, "0"),)),
    ("transceiver_threshold", (now(cabling.TRANSCEIVER_TEMPERATURE, 85_000),)),
    ("transceiver_threshold", (once(n.TRANSCEIVER_TOO_HOT),)),
    ("link_flap", (once(n.LINK_DOWNS),)),
    ("rdma_port_inactive", (now(rdma.RDMA_STATE, 2),)),
    ("gpu_path_longer", (labels(gpu_path="PHB"),)),
    ("settings_differ", (settings(pfc="none"),)),
    ("settings_differ", (now(t.RING, 1024, "receive"),)),
    ("firmware_differs", (labels(firmware="28.35.1000"),)),
    ("pfc_storm", (once(n.STORM_ERRORS),)),
    ("pfc_storm", (rate(PAUSING, 0.9 * MICROSECONDS, "3"), rate(n.RDMA_RECEIVED, 0))),
    (
        "pfc_storm",
        (
            rate(PAUSING, 0.9 * MICROSECONDS, "3"),
            _paused_in_another_priority,
            rate(n.RDMA_RECEIVED, 0),
        ),
    ),
    ("pfc_storm", (*_counts_link_wide_pause(11_000), rate(n.RDMA_RECEIVED, 0))),
    (
        "pfc_storm",
        (
            now(PAUSING, Absent.UNSUPPORTED, "3"),
            *_counts_link_wide_pause(11_000),
            rate(n.RDMA_RECEIVED, 0),
        ),
    ),
    ("slow_receiver", (rate(PAUSING, 0.02 * MICROSECONDS, "3"),)),
    (
        "slow_receiver",
        (
            rate(PAUSING, 0.3 * MICROSECONDS, "3"),
            _paused_in_another_priority,
            rate(n.RDMA_RECEIVED, 0),
        ),
    ),
    ("slow_receiver", _counts_link_wide_pause(1100)),
    ("slow_receiver", (rate(PAUSING, 0.1 * MICROSECONDS, "3"), peers(number=0))),
    ("host_bound_receiver", (_pausing, peers(_pausing, number=3), _with_idle_socket)),
    ("pcie_bound_receiver", (rate(PAUSING, 0.02 * MICROSECONDS, "3"), rate(STALLED, 0.5))),
    ("paused_by_switch", (rate(PAUSED, 0.03 * MICROSECONDS, "3"),)),
    ("paused_by_switch", _counts_link_wide_pause(0, 1100)),
    ("incast_receiver", (rate(s.MARKED, RECEIVED / 42_000), rate(n.RDMA_RECEIVED, 2 * RECEIVED))),
    ("lossless_discards", (once(n.PRIORITY_DISCARDS, "3"),)),
    ("receive_discards", (rate(n.DISCARDS_RECEIVED, 2),)),
    ("receive_discards", (rate(s.OUT_OF_BUFFER, 20), peers(number=0))),
    ("transport_retry", (rate(s.ACK_TIMEOUTS, 1),)),
    ("transport_retry", (rate(s.SEQUENCE_ERRORS, 20),)),
    ("transport_retry", (rate(s.ADAPTIVE, 20),)),
    ("transport_retry", (once(s.RETRIES_EXCEEDED),)),
    ("out_of_order", (rate(s.OUT_OF_SEQUENCE, 1),)),
    ("cnp_ignored", (rate(s.IGNORED, 50),)),
    ("cnp_not_sent", (rate(s.NOTIFIED, 0),)),
    ("unprotected_traffic", (rate(n.PRIORITY_SENT, RECEIVED / 2, "3"),)),
    ("pcie_stalled", (rate(STALLED, 0.4),)),
]
QUIET: dict[str, tuple[Change, ...]] = {
    "nothing": (),
    "a NIC without peers": (peers(number=0),),
    "an unused port without a role": (
        now(host.LINK_UP, 0), labels(role=""), now(n.RDMA_RECEIVED, 0), now(n.RECEIVED, 0),
    ),
    "a second port that is unused on all NICs": (
        now(host.LINK_UP, 0), now(n.RDMA_RECEIVED, 0), now(n.RECEIVED, 0), peers(now(host.LINK_UP, 0)),
    ),
    "a driver that was loaded again": (once(n.LINK_DOWNS), peers(once(n.LINK_DOWNS))),
    "a NIC that is nearer to its GPU": (labels(gpu_path="PIX"), peers(labels(gpu_path="PXB"))),
    "a slow slot by design": (
        now(pcie.PCIE_PATH_LIMIT, 10**9), peers(now(pcie.PCIE_PATH_LIMIT, 10**9)),
    ),
    "few corrected PCIe errors": (rate(pcie.PCIE_ERRORS, 0.05, "correctable"),),
    "bit errors as at the peers": (
        rate(n.CORRECTED, LINE_BYTES * 4e-6), peers(rate(n.CORRECTED, LINE_BYTES * 4e-6)),
    ),
    "one symbol beyond correction": (once(n.UNCORRECTED_SYMBOLS),),
    "congestion of the whole network": (
        rate(PAUSED, 0.02 * MICROSECONDS, "3"), peers(rate(PAUSED, 0.02 * MICROSECONDS, "3")),
    ),
    "spraying": (rate(s.OUT_OF_SEQUENCE, 500), peers(rate(s.OUT_OF_SEQUENCE, 500))),
    "marks without more traffic": (rate(s.MARKED, RECEIVED / 42_000),),
    "a job that ends": (rate(n.RDMA_SENT, 0), rate(n.PRIORITY_SENT, 0, "3")),
    "settings that half of the NICs have": (
        settings(mtu="9000"),
        lambda facts: changed(facts, lambda of: _with_peers(of, settings(mtu="9000"), 3)),
    ),
    "settings of a link that is down": (
        now(host.LINK_UP, 0), labels(role=""), now(n.RDMA_RECEIVED, 0), now(n.RECEIVED, 0), settings(pfc="none"),
    ),
    "discards of a priority with losses": (once(n.PRIORITY_DISCARDS, "0"),),
}  # fmt: skip


def _with_peers(facts: HealthFacts, change: Change, number: int) -> HealthFacts:
    """Return facts with some of the peers changed."""
    mixed = [change(alone()) for _ in range(number)] + [alone() for _ in range(number + 1)]
    return changed(
        facts,
        lambda of: HealthFacts(
            of.readings, of.changes, labels=of.labels, settings=of.settings, peers=tuple(mixed)
        ),
    )


@pytest.mark.parametrize(
    ("reason", "changes"), FAULTS, ids=[f"{r}-{i}" for i, (r, _) in enumerate(FAULTS)]
)
def test_a_fault_is_reported_with_its_values(reason: str, changes: tuple[Change, ...]) -> None:
    facts = healthy(*changes)
    verdict = judge(facts, NIC_RULES)
    assert reason in verdict.reasons
    assert f"{reason} (" in format_verdict(facts, verdict, NIC_RULES)
    assert verdict.actions


def test_every_rule_has_a_fault() -> None:
    assert {reason for reason, _ in FAULTS} == {rule.reason for rule in NIC_RULES}
    assert len({rule.reason for rule in NIC_RULES}) == len(NIC_RULES)


@pytest.mark.parametrize("quiet", QUIET)
def test_a_harmless_state_has_no_reason(quiet: str) -> None:
    verdict = judge(healthy(*QUIET[quiet]), NIC_RULES)
    assert (verdict.reasons, verdict.state) == ((), HEALTHY)


def test_ports_without_evidence_of_a_use_are_listed_as_absent() -> None:
    unused = QUIET["an unused port without a role"]
    nics = {"eth0": healthy(), "eth1": healthy(*unused), "eth2": healthy(now(host.LINK_UP, 0))}
    (finding,) = findings_of_unused_ports(nics)
    assert finding.verdict is ProbeVerdict.ABSENT
    assert finding.detail.startswith("1 NIC without carrier")
    assert finding.detail.endswith(": eth1")
    assert findings_of_unused_ports({"eth0": healthy(), "eth2": nics["eth2"]}) == []
    many = findings_of_unused_ports({f"eth{n}": healthy(*unused) for n in range(20)})
    assert many[0].detail.endswith("eth15, ...")


def test_an_absent_reading_is_unknown_and_never_healthy() -> None:
    for metric in (host.LINK_UP, pcie.PCIE_PATH_STATE, rdma.RDMA_STATE):
        for why in (Absent.TIMEOUT, Absent.ERROR, Absent.DENIED):
            assert judge(healthy(now(metric, why)), NIC_RULES).state == UNKNOWN


@pytest.mark.parametrize(
    ("reason", "metric", "part"),
    [
        ("receive_discards", n.DISCARDS_RECEIVED, ()),
        ("pfc_storm", n.STORM_WARNINGS, ()),
        ("pcie_errors", pcie.PCIE_ERRORS, ("fatal",)),
        ("settings_differ", t.MTU, ()),
        ("settings_differ", t.PFC_ENABLED, ("3",)),
        ("settings_differ", t.ECN_ENABLED, ("notification", "3")),
        ("settings_differ", t.RING, ("receive",)),
    ],
)
def test_one_absent_reading_of_several_is_unknown(
    reason: str, metric: Metric, part: tuple[str, ...]
) -> None:
    facts = healthy(now(metric, Absent.DENIED, *part))
    verdict = judge(facts, NIC_RULES)
    assert verdict.missing[reason] is Absent.DENIED
    assert (verdict.state, verdict.reasons) == (UNKNOWN, ())


def test_a_fault_is_reported_although_another_reading_is_absent() -> None:
    facts = healthy(rate(s.OUT_OF_BUFFER, 20), now(n.DISCARDS_RECEIVED, Absent.ERROR))
    assert "receive_discards" in judge(facts, NIC_RULES).reasons


def test_counters_that_were_read_once_have_no_result_and_delay_nothing() -> None:
    first = HealthFacts(alone().readings, labels=alone().labels, settings=SETTINGS)
    verdict = judge(first, NIC_RULES)
    assert verdict.state == HEALTHY
    assert verdict.results["link_flap"] is Absent.NOT_DUE


def test_a_source_that_was_denied_for_a_nic_is_unknown_for_it_alone() -> None:
    nics = [
        Entity(entities.NIC, (name,), {"role": "compute", "rdma_device": name})
        for name in ("a", "b")
    ]
    facts = NodeHealthFacts()
    for stream, metric, shown in (("link", host.LINK_UP, nics), ("nic", n.RECEIVED, nics[:1])):
        columns = tuple((metric, nic) for nic in shown)
        values = array("q", [1] * len(columns))
        facts.add(Frame(ORIGIN, Schema(stream, columns), 1, NodeTimestamp(0, 1), values))

    def states(absent: AbsentSources) -> list[int]:
        return [judge(of, NIC_RULES).state for of in facts.nics(absent).values()]

    assert states(AbsentSources()) == [HEALTHY, HEALTHY]
    assert states(AbsentSources(partial={"nic": Absent.DENIED})) == [HEALTHY, UNKNOWN]
    assert states(AbsentSources(whole={"link": Absent.TIMEOUT})) == [UNKNOWN, UNKNOWN]


def test_an_rdma_device_that_another_one_of_its_function_replaces_is_no_nic() -> None:
    """A bond is dissolved: the driver makes an RDMA device for each port again."""
    facts = NodeHealthFacts()
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
    assert set(facts.nics(AbsentSources())) == {"eth0", "eth1"}


# Captures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", names())
def test_the_reasons_against_nics_are_those_of_the_case(case: str) -> None:
    expected = read_case(CASES / case).nic_reasons
    assert reasons_of_nics(capture_of(case)) == {nic: sorted(of) for nic, of in expected.items()}


NETWORK_SCENARIOS = {
    "incast": "incast_receiver",
    "pause_storm": "pfc_storm",
    "slow_receiver": "pcie_bound_receiver",
    "stalled_receiver": "pcie_bound_receiver",
    "pfc_victim": "paused_by_switch",
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


@pytest.mark.parametrize("scenario", NETWORK_SCENARIOS)
def test_every_network_scenario_has_its_reason(scenario: str) -> None:
    found = simulate(scenario)
    assert NETWORK_SCENARIOS[scenario] in found[AFFECTED]
    assert scenario == "settings_drift" or set(found) == {AFFECTED}


@pytest.mark.parametrize(("scenario", "nic"), HARMLESS)
def test_a_harmless_scenario_has_none(scenario: str, nic: str) -> None:
    assert simulate(scenario, nic) == {}


def test_the_command_reports_a_faulty_nic_with_its_names_and_the_remedy() -> None:
    case = CASES / "port-trained-down"
    outcome = CliRunner().invoke(agent, ["check", "--replay", str(case)])
    (line,) = [each for each in outcome.stdout.splitlines() if each.startswith("BROKEN  NIC")]
    assert outcome.exit_code == 1
    assert line.startswith(
        "BROKEN  NIC ens4f0np0 (mlx5_5, rail 3): degraded: link_speed_low (200 Gb/s on 2 lanes, expected 400 Gb/s), "
    )
    assert "         -> replace the cable; check the switch port" in outcome.stdout
    assert "health of NICs: 6 NICs by 32 rules: 5 healthy, 1 degraded" in outcome.stdout
