"""Facts of a healthy NIC among peers, and the verdicts on the NICs of a capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from support.health import HealthFault, with_faults
from support.sampling import read_sources

from railscope.capture import Capture
from railscope.catalog import cabling, host, nic as n, nic_settings as t, pcie, rdma
from railscope.catalog.declare import Metric
from railscope.reading import Reading
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.health import judge, nic_signals as s
from railscope_agent.health.fact_collector import NIC_RULES, SOURCES, FactCollector
from railscope_agent.health.health_facts import MINUTE_NS, CounterIncrease, DevicePart, HealthFacts
from railscope_agent.service import Agent

Change: TypeAlias = Callable[[HealthFacts], HealthFacts]
MEGABITS, PEERS = 400_000, 7
LINE_BYTES = MEGABITS * 125_000
RECEIVED = LINE_BYTES * 3 // 10
LABELS = {
    "role": "compute", "driver": "mlx5_core", "firmware": "28.39.1002", "pci_address": "0000:5e:00.0",
    "vendor": "0x15b3", "device": "0x1021", "gpu_path": "PXB", "numa_node": "0",
}  # fmt: skip
SETTINGS = {"mtu": "4200", "pfc": "3", "trust": "dscp", "ecn_reaction": "3", "hash": "1"}


def per_second(amount: float) -> CounterIncrease:
    """Return the increase of a counter in the last minute, which is all that is known."""
    return CounterIncrease(round(60 * amount), MINUTE_NS, round(60 * amount), MINUTE_NS)


def now(metric: Metric, value: Reading, *part: str) -> Change:
    """Return a change of one reading."""
    return lambda facts: with_faults([HealthFault({(metric, part): value})], facts)


def rate(metric: Metric, amount: float, *part: str) -> Change:
    """Return a change of the rate of one counter, in its stored unit per second."""
    fault = HealthFault(changes={(metric, part): per_second(amount)})
    return lambda facts: with_faults([fault], facts)


def once(metric: Metric, *part: str) -> Change:
    """Return a change of one counter, by one some minutes ago."""
    fault = HealthFault(changes={(metric, part): CounterIncrease(1, 10 * MINUTE_NS, 0, MINUTE_NS)})
    return lambda facts: with_faults([fault], facts)


def settings(**changed: str) -> Change:
    """Return a change of settings."""
    return lambda facts: replace(facts, settings={**facts.settings, **changed})


def labels(**changed: str) -> Change:
    """Return a change of labels."""
    return lambda facts: replace(facts, labels={**facts.labels, **changed})


def healthy(*changes: Change) -> HealthFacts:
    """Return a healthy NIC of a training job with its peers, and with changes."""
    facts = replace(alone(), peers=tuple(alone() for _ in range(PEERS)))
    for change in changes:
        facts = change(facts)
    return facts


def alone() -> HealthFacts:
    """Return a healthy 400G NIC of a training job."""
    readings: dict[tuple[Metric, DevicePart], Reading] = {
        (host.LINK_UP, ()): 1,
        (host.LINK_SPEED, ()): MEGABITS,
        (rdma.RDMA_UP, ()): 1,
        (rdma.RDMA_STATE, ()): 4,
        (rdma.RDMA_PHYSICAL_STATE, ()): 5,
        (t.EXPECTED_SPEED, ()): MEGABITS,
        (t.LINK_LANES, ()): 4,
        (t.FEC_ACTIVE, ()): 2,
        (t.PFC_ENABLED, ("0",)): 0,
        (t.PFC_ENABLED, ("3",)): 1,
        (t.RING, ("receive",)): 8192,
        (cabling.TRANSCEIVER_TEMPERATURE, ()): 55_000,
        (cabling.TRANSCEIVER_TEMPERATURE_THRESHOLD, ("high_alarm",)): 80_000,
        (cabling.TRANSCEIVER_RECEIVE_POWER, ("0",)): 1_000_000,
        (cabling.TRANSCEIVER_RECEIVE_POWER, ("7",)): 0,
        (cabling.TRANSCEIVER_RECEIVE_POWER_THRESHOLD, ("low_alarm",)): 200_000,
        (cabling.TRANSCEIVER_RECEIVE_POWER_THRESHOLD, ("low_warning",)): 400_000,
        (pcie.PCIE_GONE, ()): 0,
        (pcie.PCIE_PATH_STATE, ()): 0,
        (pcie.PCIE_PATH_LIMIT, ()): 63 * 10**9 * pcie.PATH_STEPS,
        (pcie.PCIE_PATH_BANDWIDTH, ()): 63 * 10**9 * pcie.PATH_STEPS,
        (pcie.PCIE_SPEED, ()): 32_000,
        (pcie.PCIE_WIDTH, ()): 16,
    }
    rates: dict[tuple[Metric, DevicePart], float] = {
        (n.RDMA_RECEIVED, ()): RECEIVED,
        (n.RDMA_SENT, ()): RECEIVED,
        (n.RECEIVED, ()): RECEIVED,
        (n.PRIORITY_SENT, ("0",)): 1000,
        (n.PRIORITY_SENT, ("3",)): RECEIVED,
        (n.RDMA_RECEIVED_PACKETS, ()): RECEIVED // 4200,
        (n.LINE_RECEIVED, ()): LINE_BYTES * 8,
        (n.CORRECTED, ()): LINE_BYTES * 8e-8,
    }
    still: list[tuple[Metric, DevicePart]] = [
        (n.PFC_SENT_TIME, ("3",)), (n.PFC_RECEIVED_TIME, ("3",)), (n.PRIORITY_DISCARDS, ("0",)),
        (n.PRIORITY_DISCARDS, ("3",)), (pcie.PCIE_ERRORS, ("correctable",)), (pcie.PCIE_ERRORS, ("nonfatal",)),
        (pcie.PCIE_ERRORS, ("fatal",)),
        *((metric, ()) for metric in (
            n.STORM_ERRORS, n.STORM_WARNINGS, n.UNCORRECTED_SYMBOLS, n.LINK_DOWNS, host.LINK_CHANGES,
            n.DISCARDS_RECEIVED, n.PCIE_WRITE_STALLED, s.ACK_TIMEOUTS, s.SEQUENCE_ERRORS,
            s.RETRIES_EXCEEDED, n.TRANSCEIVER_TOO_HOT,
        )),
    ]  # fmt: skip
    increases = {place: per_second(amount) for place, amount in rates.items()}
    increases |= dict.fromkeys(still, per_second(0))
    readings |= dict.fromkeys(increases, 10**12)
    facts = with_faults([HealthFault(readings, increases)], HealthFacts())
    return replace(facts, labels=LABELS, settings=SETTINGS)


def reasons_of_nics(capture: Capture) -> Mapping[str, list[str]]:
    """Return the reasons against each NIC of a capture, as `agent check` finds them."""
    walk, facts = CaptureWalk(capture), FactCollector()
    agent = Agent(AgentSettings(), walk.host, walk.host.node, on_frame=facts.add)
    read_sources(walk, agent, SOURCES)
    verdicts = {nic: judge(of_nic, NIC_RULES) for nic, of_nic in facts.nics().items()}
    return {nic: sorted(each.reasons) for nic, each in verdicts.items() if each.reasons}
