"""The health rules of a GPU: the conditions of each, and their combined verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.faults import FAULTS, PULSE, QUIET, all_gone, seconds, throttled
from support.health import (
    LINKS,
    HealthFault,
    change,
    healthy,
    links,
    reading,
    with_faults,
    xid,
)

from railscope.catalog import gpu as c, gpu_health as h, nvlink as n
from railscope.reading import Absent
from railscope_agent.config import AgentSettings
from railscope_agent.health import RULES, RuleResults, judge
from railscope_agent.health.gpu_facts import SOURCES
from railscope_agent.health.health_facts import MINUTE_NS, CounterIncrease, HealthFacts
from railscope_agent.health.rule import (
    ACTIONS_BY_SEVERITY,
    DEGRADED,
    FAILED,
    HEALTHY,
    INSPECT,
    UNKNOWN,
    HealthRule,
)
from railscope_agent.machine_sources import machine_sources

BY_REASON = {rule.reason: rule for rule in RULES}
BADNESS = (HEALTHY, DEGRADED, UNKNOWN, FAILED)


def named(cases: list[tuple[str, HealthFault]]) -> list[str]:
    return [f"{reason}-{number}" for number, (reason, _) in enumerate(cases)]


# Single rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "fault"), FAULTS, ids=named(FAULTS))
def test_a_fault_is_reported_and_leads_to_the_state_of_its_rule(
    reason: str, fault: HealthFault
) -> None:
    verdict = judge(with_faults([fault]))
    assert verdict.results[reason] is True
    assert reason in verdict.reasons
    state = BY_REASON[reason].state
    assert BADNESS.index(verdict.state) >= BADNESS.index(state)
    assert verdict.actions


@pytest.mark.parametrize(("reason", "fault"), QUIET, ids=named(QUIET))
def test_a_harmless_reading_is_not_a_fault(reason: str, fault: HealthFault) -> None:
    assert judge(with_faults([fault])).results[reason] is not True


class RecordedUse(dict[Any, Any]):
    """A mapping that records the requested keys."""

    def __init__(self, content: Mapping[Any, Any]) -> None:
        super().__init__(content)
        self.used: set[Any] = set()

    def get(self, key: Any, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.metrics], ids=lambda r: r.reason)
def test_a_rule_uses_only_the_metrics_that_it_declares(rule: HealthRule) -> None:
    """Its result is kept until one of them has been read again."""
    for facts in (healthy(), *(with_faults([fault]) for _, fault in (*FAULTS, *QUIET))):
        readings, changes = RecordedUse(facts.readings), RecordedUse(facts.changes)
        rule.evaluate(replace(facts, readings=readings, changes=changes))
        assert readings.used | changes.used <= set(rule.metrics)


def test_kept_results_are_those_of_all_facts() -> None:
    """One source after the other is read again; the objects of the others stay the same."""
    results, current = RuleResults(), healthy()
    for _, fault in (*FAULTS, *QUIET):
        other = with_faults([fault])
        for facts in (other, healthy()):
            readings = {
                metric: current.readings[metric]
                if current.readings.get(metric) == parts
                and current.changes.get(metric) == facts.changes.get(metric)
                else parts
                for metric, parts in facts.readings.items()
            }
            current = replace(facts, readings=readings)
            assert judge(current, results=results) == judge(current)


def test_every_rule_has_a_case_with_a_finding() -> None:
    assert {reason for reason, _ in FAULTS} == set(BY_REASON)
    assert len(BY_REASON) == len(RULES)


def test_a_gpu_without_a_fault_is_healthy_and_nothing_is_to_be_done() -> None:
    verdict = judge(healthy())
    assert (verdict.state, verdict.reasons, verdict.missing) == (HEALTHY, (), {})
    assert set(verdict.results.values()) == {False}
    assert verdict.action == 0


def test_a_gpu_that_has_little_is_healthy_if_nothing_of_it_is_wrong() -> None:
    facts = HealthFacts({c.GPU_POWER: {(): 70_000}, h.GPU_PCIE_WIDTH: {(): 16}})
    verdict = judge(facts)
    assert (verdict.state, verdict.missing) == (HEALTHY, {})


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        ({"gpu": Absent.NOT_DUE, "gpu_health": Absent.NOT_DUE}, Absent.NOT_DUE),
        ({"gpu": Absent.UNSUPPORTED, "gpu_health": Absent.UNSUPPORTED}, Absent.UNSUPPORTED),
    ],
)
def test_a_gpu_that_nothing_is_known_of_is_unknown_and_no_action_is_guessed(
    sources: dict[str, Absent], reason: Absent
) -> None:
    verdict = judge(HealthFacts(absent_sources=sources))
    assert (verdict.state, verdict.reasons, verdict.action) == (UNKNOWN, (), reason)


def test_a_gpu_for_which_the_driver_supports_nothing_does_not_answer() -> None:
    """NVML answers "not supported" or "not found" to every call: nothing is known of its links either."""
    verdict = judge(HealthFacts(peer_links=12))
    assert (verdict.state, verdict.reasons) == (UNKNOWN, ("driver_unresponsive",))


def test_one_source_alone_does_not_mark_a_gpu_as_lost() -> None:
    for metrics in (PULSE[:3], PULSE[3:]):
        verdict = judge(with_faults([all_gone(*metrics)]))
        assert verdict.results["gpu_lost"] is Absent.GONE
        assert verdict.state == UNKNOWN


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (0, Absent.NOT_DUE),
        (Absent.TIMEOUT, Absent.TIMEOUT),
        (Absent.UNSUPPORTED, Absent.UNSUPPORTED),
    ],
)
def test_a_gpu_is_not_called_lost_before_the_bus_has_been_looked_at(
    state: int | Absent, answer: Absent
) -> None:
    unlisted = {"gpu": Absent.GONE, "gpu_health": Absent.GONE}
    verdict = judge(
        with_faults([HealthFault(absent_sources=unlisted, others={"device_state": state})])
    )
    assert (verdict.state, verdict.results["gpu_lost"]) == (UNKNOWN, answer)


def test_a_counter_that_was_read_once_is_left_open_and_holds_nothing_up() -> None:
    verdict = judge(replace(healthy(), changes={}))
    open_ = {reason for reason, answer in verdict.results.items() if answer is Absent.NOT_DUE}
    assert open_ == {
        "ecc_corrected_rate",
        "nvlink_recovering", "nvlink_crc", "nvlink_crc_rate", "pcie_replays", "pcie_errors",
        "thermal_hardware", "thermal_software", "power_brake",
    }  # fmt: skip
    assert (verdict.state, verdict.missing) == (HEALTHY, {})


def test_rates_and_shares_wait_for_a_minute() -> None:
    burst = CounterIncrease(10**12, MINUTE_NS - 1, 10**12, MINUTE_NS - 1)
    faults = [
        change(h.GPU_PCIE_REPLAYS, burst),
        throttled("software_thermal", burst),
        *(change(n.NVLINK_ERRORS, burst, str(link), "crc") for link in range(LINKS)),
    ]
    answers = judge(with_faults(faults)).results
    for reason in ("pcie_replays", "thermal_software", "nvlink_crc_rate"):
        assert answers[reason] is Absent.NOT_DUE


def test_older_drivers_count_heat_under_one_name() -> None:
    old = {("thermal",): 10**11}
    facts = with_faults([change(c.GPU_THROTTLE_TIME, seconds(60), "thermal")])
    facts = replace(facts, readings={**facts.readings, c.GPU_THROTTLE_TIME: old})
    assert judge(facts).reasons == ("thermal_software",)


@pytest.mark.parametrize("fabric", [0, Absent.UNSUPPORTED])
def test_a_gpu_without_a_bridge_is_neither_a_fault_nor_undecided(fabric: int | Absent) -> None:
    verdict = judge(with_faults([links(*[0] * LINKS), reading(h.GPU_FABRIC_STATE, fabric)]))
    assert verdict.results["nvlink_down"] is False


def test_retired_pages_of_an_unreadable_cause_leave_the_number_undecided() -> None:
    verdict = judge(with_faults([reading(h.GPU_RETIRED_PAGES, Absent.ERROR, "uncorrectable")]))
    assert verdict.results["retired_pages_exhausted"] is Absent.ERROR


def test_sources_that_have_not_been_read_are_not_stale_yet() -> None:
    starting = {"gpu": Absent.NOT_DUE, "gpu_health": Absent.NOT_DUE}
    assert (
        judge(HealthFacts(absent_sources=starting)).results["driver_unresponsive"] is Absent.NOT_DUE
    )


def test_a_fault_that_leads_to_unknown_is_worse_than_one_that_degrades() -> None:
    unclear = replace(BY_REASON["row_remap_pending"], reason="unclear", state=UNKNOWN)
    facts = with_faults([reading(h.GPU_ROW_REMAP_PENDING, 1)])
    assert judge(facts, (unclear, BY_REASON["row_remap_pending"])).state == UNKNOWN


def test_an_unreadable_link_leaves_the_link_rule_undecided() -> None:
    verdict = judge(with_faults([links(Absent.ERROR)]))
    assert verdict.results["nvlink_down"] is Absent.ERROR
    verdict = judge(with_faults([links(*[0] * (LINKS - 1), Absent.ERROR)]))
    assert verdict.results["nvlink_down"] is True


def test_readings_that_need_root_do_not_prevent_a_healthy_verdict() -> None:
    verdict = judge(with_faults([reading(h.GPU_SRAM_THRESHOLD, Absent.DENIED)]))
    assert verdict.results["sram_threshold"] is Absent.DENIED
    assert verdict.state == HEALTHY


def test_a_kernel_log_that_cannot_be_read_leaves_xids_open() -> None:
    verdict = judge(with_faults([HealthFault(absent_sources={"kernel": Absent.DENIED})]))
    assert verdict.results["xid_fatal"] is Absent.DENIED
    with_xid = judge(
        with_faults([HealthFault(absent_sources={"kernel": Absent.DENIED}, xids=(xid(79),))])
    )
    assert with_xid.state == FAILED


def test_ecc_that_will_be_off_after_the_next_reset_is_not_a_fault() -> None:
    modes = [reading(h.GPU_ECC_MODE, 1), reading(h.GPU_ECC_PENDING, 0)]
    assert judge(with_faults(modes)).state == HEALTHY


# Actions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "actions", "nvidia"),
    [
        ([reading(h.GPU_RECOVERY_ACTION, 1)], "reset_gpu", "GPU Reset Required"),
        ([reading(h.GPU_RECOVERY_ACTION, 4)], "drain reset_gpu", "Drain and Reset"),
        ([reading(h.GPU_RECOVERY_ACTION, 5)], "inspect", "Recover IMEX Domain"),
        ([reading(h.GPU_RECOVERY_ACTION, 8)], "inspect", "0x8"),
        ([HealthFault(xids=(xid(79),))], "drain reboot", "Xid 79: RESTART_BM"),
        ([HealthFault(xids=(xid(149),))], "inspect", "Xid 149: WORKFLOW_NVLINK5_ERR"),
        ([HealthFault(xids=(xid(165),))], "rma", "Xid 165"),
        (
            [HealthFault(xids=(xid(95), xid(79)))],
            "drain reset_gpu reboot",
            "Xid 95: RESET_GPU, Xid 79: RESTART_BM",
        ),
        ([reading(h.GPU_PCIE_WIDTH, 8), links(0)], "inspect drain reset_gpu", "WORKFLOW_NVLINK_ERR"),
        (
            [reading(h.GPU_ROW_REMAP_FAILURE, 1), reading(h.GPU_ROW_REMAP_PENDING, 1)],
            "drain reset_gpu rma",
            "CONTACT_SUPPORT, RESET_GPU",
        ),
    ],
)  # fmt: skip
def test_actions_are_those_of_all_faults_from_mildest_to_hardest(
    faults: list[HealthFault], actions: str, nvidia: str
) -> None:
    verdict = judge(with_faults(faults))
    assert (" ".join(verdict.actions), ", ".join(verdict.nvidia)) == (actions, nvidia)
    assert h.GPU_ACTION.states[verdict.action] == verdict.actions[-1]  # type: ignore[index]


def test_every_action_has_a_state_and_a_place_in_the_order() -> None:
    assert set(ACTIONS_BY_SEVERITY) | {"none"} == set(h.GPU_ACTION.states.values())
    assert ACTIONS_BY_SEVERITY.index(INSPECT) < ACTIONS_BY_SEVERITY.index("drain")


def test_rules_are_about_sources_that_there_are() -> None:
    names = {source.name for source in machine_sources(AgentSettings())}
    assert set(SOURCES) <= names
    assert {source for rule in RULES for source in rule.sources} <= set(SOURCES)
