"""Verdicts over time: earlier counter values, Xids that still count, and expired readings."""

from __future__ import annotations

import pytest
from support.gpus import add_gpus, answers, of_gpu
from support.judging import (
    ACTION,
    FIELD,
    HEALTH,
    VerdictSources,
    plug,
    set_field,
    unplug,
    verdict_sources,
)
from support.machine import FakeHost
from support.pci_bus import add_gpu, set_link
from support.reading import readings

from railscope.exposition import TextFormat
from railscope.reading import Absent
from railscope_agent.config import AgentSettings
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host import MAX_GPUS, NvmlError
from railscope_agent.sampling.status import FAILED, OK, STARTING, UNSUPPORTED
from railscope_agent.service import Agent

COUNT = "nvml.nvmlDeviceGetCount()"
REPLAYS, THERMAL = 94, 270
LOST = NvmlError(15, "GPU is lost")

# From the start -----------------------------------------------------------------------------------


def test_a_sound_gpu_is_healthy_at_the_first_poll_without_an_event() -> None:
    run = verdict_sources(2)
    run.step()
    assert [(run.state(gpu), run.action(gpu)) for gpu in (0, 1)] == [("healthy", "none")] * 2
    assert run.statuses["gpu_verdict"].state == OK
    assert run.events == []


def test_before_the_first_reading_the_verdict_waits_for_its_next_turn() -> None:
    run = verdict_sources()
    assert run.judge() is None
    assert run.statuses["gpu_verdict"].state == STARTING
    run.read("gpu")
    run.judge()
    assert run.state() == "unknown"
    assert readings(run.frame)[ACTION, ("GPU-0",)] is Absent.NOT_DUE
    run.step()
    assert run.state() == "healthy"
    assert run.events == []


def test_a_server_without_gpus_has_no_verdict() -> None:
    run = VerdictSources(FakeHost())
    assert run.step() is None
    assert run.statuses["gpu_verdict"].state == UNSUPPORTED


def test_a_driver_that_is_sick_and_has_no_gpu_fails_the_verdict_until_it_is_well() -> None:
    run = verdict_sources()
    unplug(run.host, "0000:01:00.0")
    run.host.calls[COUNT] = NvmlError(9, "driver not loaded")
    assert run.step() is None
    assert run.statuses["gpu_verdict"].state == FAILED
    run.host.calls[COUNT] = 1
    run.step()
    assert run.state() == "healthy"


@pytest.mark.parametrize("code", [10, 999])
def test_a_gpu_that_answers_nothing_any_more_is_unknown(code: int) -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), NvmlError(code, "no answer"))
    run.steps(10)
    assert (run.state(1), run.reasons(1)) == ("unknown", ["driver_unresponsive"])
    assert run.action(1) == "inspect"
    assert run.state(0) == "healthy"


async def test_once_judges_after_all_others_have_been_read() -> None:
    host = FakeHost()
    add_gpus(host, 2)
    host.calls["nvml.nvmlDeviceGetRemappedRows(1)"] = [0, 1, 1, 0]
    agent = Agent(AgentSettings(), host, "node-1")
    await agent.once()
    found = readings(agent.sampler.statuses["gpu_verdict"].frame)
    assert (found[HEALTH, ("GPU-0",)], found[HEALTH, ("GPU-1",)]) == (1, 2)


# Counters -----------------------------------------------------------------------------------------


def test_replays_count_by_the_minute_and_are_forgiven_when_they_end() -> None:
    run = verdict_sources()
    run.step()
    replays = 0
    for _ in range(14):
        replays += 3  # 36 a minute; at 16 lanes of generation 5 there may be 31
        set_field(run, REPLAYS, replays)
        run.step()
    assert (run.state(), run.reasons(), run.action()) == ("degraded", ["pcie_replays"], "inspect")
    run.steps(100)
    assert (run.state(), run.reasons()) == ("healthy", [])


def test_time_spent_too_hot_counts_for_ten_minutes() -> None:
    run = verdict_sources()
    run.step()
    set_field(run, THERMAL, 10**10)
    run.step()
    assert run.reasons() == ["thermal_hardware"]
    run.steps(590)
    assert run.reasons() == ["thermal_hardware"]
    run.steps(60)
    assert run.reasons() == []
    assert [event.facts["after"] for event in run.events] == ["degraded", "healthy"]


def test_a_counter_that_falls_back_to_zero_has_no_past() -> None:
    run = verdict_sources()
    set_field(run, 91, 1)
    set_field(run, "165:0", 1)
    set_field(run, "161:0", 1000)
    run.step()
    set_field(run, "161:0", 1007)
    run.step()
    assert (run.state(), run.reasons()) == ("failed", ["nvlink_recovering"])
    set_field(run, "161:0", 0)
    run.step()
    assert run.reasons() == []
    set_field(run, "161:0", 1)
    run.step()
    assert run.reasons() == ["nvlink_recovering"]


def test_an_unknown_error_of_one_poll_changes_no_state() -> None:
    run = verdict_sources(2)
    run.step()
    there = {call: run.host.calls[call] for call in of_gpu(run.host, 1)}
    run.host.calls |= dict.fromkeys(there, NvmlError(999, "Unknown Error"))
    run.step()
    assert (run.state(1), run.action(1)) == ("healthy", "none")
    assert run.answer("driver_unresponsive", 1) == 1
    run.host.calls |= there
    run.step()
    assert (run.state(1), run.events) == ("healthy", [])


def test_a_counter_that_cannot_be_read_for_a_while_keeps_its_past() -> None:
    run = verdict_sources()
    set_field(run, THERMAL, 10**9)
    run.steps(120)
    run.host.calls[FIELD.format(0, THERMAL)] = [999, 0]
    run.steps(10)
    assert run.answer("thermal_hardware") is Absent.ERROR
    assert run.state() == "unknown"
    set_field(run, THERMAL, 2 * 10**9)
    run.step()
    assert run.reasons() == ["thermal_hardware"]


# Old and missing readings -------------------------------------------------------------------------


def test_a_gpu_with_stale_readings_is_unknown() -> None:
    run = verdict_sources()
    run.step()
    page = MetricsEndpoint("node-1", run.statuses.values, lambda: run.host.clock.now().boot_ns, "")
    run.step(5, silent={"gpu"})
    assert "railscope_gpu_power_watts" in page.text(TextFormat.PROMETHEUS)
    assert run.state() == "healthy"
    run.step(0.1, silent={"gpu"})
    text = page.text(TextFormat.PROMETHEUS)
    assert "railscope_gpu_power_watts" not in text
    assert 'railscope_gpu_health{gpu="GPU-0",state="unknown"} 1' in text
    assert (run.reasons(), run.action()) == (["driver_unresponsive"], "inspect")
    assert run.answer("gpu_lost") is Absent.TIMEOUT
    run.step()
    assert run.state() == "healthy"


@pytest.mark.parametrize("source", ["gpu", "gpu_health"])
def test_a_driver_that_hangs_makes_every_gpu_unknown(source: str) -> None:
    run = verdict_sources(2)
    run.step()
    run.hang(source)
    run.judge()
    assert [run.state(gpu) for gpu in (0, 1)] == ["unknown", "unknown"]


def test_a_fault_that_was_there_before_the_driver_hung_is_not_known_to_be_gone() -> None:
    run = verdict_sources()
    run.host.calls["nvml.nvmlDeviceGetRemappedRows(0)"] = [0, 1, 0, 1]
    run.step()
    assert run.state() == "failed"
    run.hang("gpu_health")
    run.judge()
    assert run.state() == "unknown"


def test_a_driver_that_fails_keeps_the_columns_of_its_gpus() -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls[COUNT] = NvmlError(18, "driver was updated")
    run.host.clock.advance(61)
    run.steps(10)
    assert [run.state(gpu) for gpu in (0, 1)] == ["unknown", "unknown"]
    assert run.reasons() == ["driver_unresponsive"]


def test_a_lost_gpu_has_failed_and_its_neighbour_has_not() -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), LOST)
    run.step(5, silent={"gpu_health"})
    assert run.state(1) == "unknown"  # one source may have been read while the driver was unloaded
    run.step()
    assert (run.state(1), run.reasons(1), run.action(1)) == ("failed", ["gpu_lost"], "reboot")
    assert run.state(0) == "healthy"


def test_a_gpu_that_the_driver_no_longer_lists_has_failed() -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls[COUNT] = 1
    run.step(61)
    assert (run.state(1), run.reasons(1)) == ("failed", ["gpu_lost"])
    unplug(run.host, "0000:02:00.0")
    run.step(61)
    run.step()
    assert (run.state(1), run.reasons(1)) == ("failed", ["gpu_lost"])
    plug(run.host, "0000:02:00.0", "nvidia")
    run.host.calls[COUNT] = 2
    run.step(61)
    run.step()
    assert run.state(1) == "healthy"


def test_a_gpu_in_place_of_a_broken_one_starts_without_its_faults() -> None:
    run = verdict_sources(2)
    run.step()
    run.log(1, "NVRM: Xid (PCI:0000:02:00): 79, pid=7, name=python3, GPU has fallen off the bus.")
    there = {call: run.host.calls[call] for call in of_gpu(run.host, 1)}
    run.host.calls |= dict.fromkeys(there, LOST)
    run.steps(10)
    assert (run.state(1), run.reasons(1)) == ("failed", ["gpu_lost", "xid_fatal"])
    run.host.calls |= there | {"nvml.nvmlDeviceGetUUID(1)": "GPU-2"}
    run.steps(70)
    healthy = {key for (name, key), state in readings(run.frame).items() if name == HEALTH}
    assert healthy == {("GPU-0",), ("GPU-2",)}
    assert (run.state(0), run.state(2)) == ("healthy", "healthy")


def test_a_gpu_that_was_handed_to_a_virtual_machine_is_no_longer_judged() -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls[COUNT] = 1
    plug(run.host, "0000:02:00.0", "vfio-pci")
    run.step(61)
    run.step()
    assert [key for name, key in readings(run.frame) if name == HEALTH] == [("GPU-0",)]
    assert [event.entity.key for event in run.events if event.facts["after"] == "failed"] == []


# Events and bounds --------------------------------------------------------------------------------


def test_a_change_is_reported_once_with_all_its_facts() -> None:
    run = verdict_sources(2)
    run.steps(20)
    run.host.calls["nvml.nvmlDeviceGetRemappedRows(1)"] = [0, 1, 1, 0]
    run.steps(60)
    run.host.calls["nvml.nvmlDeviceGetRemappedRows(1)"] = [0, 1, 1, 1]
    run.steps(60)
    run.host.calls["nvml.nvmlDeviceGetRemappedRows(1)"] = [0, 1, 0, 0]
    run.steps(60)
    assert {event.entity.key for event in run.events} == {("GPU-1",)}
    assert [event.facts for event in run.events] == [
        {
            "before": "healthy",
            "after": "degraded",
            "reasons": "row_remap_pending",
            "action": "reset_gpu",
            "nvidia_action": "RESET_GPU",
        },
        {
            "before": "degraded",
            "after": "failed",
            "reasons": "row_remap_failed, row_remap_pending",
            "action": "drain reset_gpu rma",
            "nvidia_action": "CONTACT_SUPPORT, RESET_GPU",
        },
        {"before": "failed", "after": "healthy"},
    ]


def test_a_gpu_that_is_unhealthy_from_the_start_is_reported() -> None:
    run = verdict_sources()
    run.host.calls["nvml.nvmlDeviceGetCurrPcieLinkWidth(0)"] = 8
    gpu, port = "0000:01:00.0", "0000:00:01.0"
    add_gpu(run.host, f"pci0000:00/{port}/{gpu}")
    plug(run.host, gpu, "nvidia")
    for end in (gpu, port):
        set_link(run.host, end, "32x8", "32x16")
    run.steps(20)
    (event,) = run.events
    assert event.facts == {"after": "degraded", "reasons": "pcie_width", "action": "inspect"}


def test_an_event_names_the_reason_of_an_unknown_verdict() -> None:
    run = verdict_sources()
    run.step()
    run.host.calls["nvml.nvmlDeviceGetMaxPcieLinkWidth(0)"] = NvmlError(999, "unknown")
    run.steps(20)
    (event,) = run.events
    assert event.facts == {"before": "healthy", "after": "unknown", "reasons": "pcie_width (error)"}


def test_gpus_that_come_and_go_fill_no_memory() -> None:
    run = verdict_sources()
    for number in range(MAX_GPUS + 8):
        run.host.calls |= answers(0) | {
            "nvml.nvmlDeviceGetUUID(0)": f"GPU-{number}",
            "nvml.nvmlDeviceGetPciInfo(0)": {"busId": f"00000000:{0x10 + number:02X}:00.0"},
        }
        run.step(61)
    assert run.frame
    judged = [key for name, key in readings(run.frame) if name == HEALTH]
    assert len(judged) == MAX_GPUS


TO_GPU, TO_SWITCH = 0, 2


@pytest.mark.parametrize(
    ("model", "mig", "remote", "state"),
    [
        ("", 0, TO_SWITCH, "failed"),
        ("", 0, TO_GPU, "healthy"),
        ("", 1, TO_SWITCH, "healthy"),
        ("NVIDIA H20", 0, TO_SWITCH, "healthy"),
    ],
)
def test_a_link_to_a_switch_that_never_came_up_is_down_if_it_is_up_at_a_peer(
    model: str, mig: int, remote: int, state: str
) -> None:
    run = verdict_sources(2)
    for gpu, links in enumerate((4, 3)):
        set_field(run, 91, 4, gpu)
        for link in range(4):
            set_field(run, f"165:{link}", int(link < links), gpu)
            run.host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({gpu},{link})"] = remote
        run.host.calls[f"nvml.nvmlDeviceGetMigMode({gpu})"] = [mig, mig]
        run.host.calls[f"nvml.nvmlDeviceGetMigDevices({gpu})"] = []
    if model:
        run.host.calls["nvml.nvmlDeviceGetName(1)"] = model
    run.step()
    assert (run.state(0), run.state(1)) == ("healthy", state)
    assert run.reasons(1) == (["nvlink_down"] if state == "failed" else [])


def test_a_gpu_without_a_pcie_generation_leaves_the_verdicts_on_others() -> None:
    run = verdict_sources(2)
    run.host.calls["nvml.nvmlDeviceGetCurrPcieLinkGeneration(0)"] = 0
    run.steps(120)
    assert (run.state(0), run.state(1)) == ("unknown", "healthy")
    assert run.answer("pcie_replays") is Absent.ERROR


def test_links_that_sleep_are_no_fault() -> None:
    run = verdict_sources(2)
    for gpu, state in enumerate((1, 2)):
        set_field(run, 91, 18, gpu)
        for link in range(18):
            set_field(run, f"165:{link}", state, gpu)
            run.host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({gpu},{link})"] = TO_SWITCH
    run.step()
    assert [run.state(gpu) for gpu in range(2)] == ["healthy", "healthy"]


def test_links_that_the_driver_turned_off_for_mig_are_no_fault() -> None:
    run = verdict_sources(1)
    set_field(run, 91, 1, 0)
    set_field(run, "165:0", 0, 0)
    set_field(run, "138:0", 4096, 0)
    run.host.calls["nvml.nvmlDeviceGetMigDevices(0)"] = []
    for mig, reasons in ((0, ["nvlink_down"]), (1, [])):
        run.host.calls["nvml.nvmlDeviceGetMigMode(0)"] = [mig, mig]
        run.step(61)
        run.step()
        assert run.reasons(0) == reasons


@pytest.mark.parametrize(
    ("switches", "passed", "state"), [(0, 0, "healthy"), (6, 0, "failed"), (6, 1, "healthy")]
)
def test_links_that_never_came_up_are_down_if_the_node_has_nvswitches(
    switches: int, passed: int, state: str
) -> None:
    """As without a fabric manager, which trains them: no GPU of the node has a link that is up.

    While a virtual machine has a GPU, the fabric is divided.
    """
    run = verdict_sources(2)
    for number in range(passed):
        plug(run.host, f"0000:{0x40 + number:02x}:00.0", "vfio-pci")
    for gpu in range(2):
        set_field(run, 91, 4, gpu)
        for link in range(4):
            set_field(run, f"165:{link}", 0, gpu)
    for number in range(switches):
        directory = f"/sys/bus/pci/devices/0000:{0xC4 + number:02x}:00.0"
        run.host.files |= {f"{directory}/class": "0x068000", f"{directory}/vendor": "0x10de"}
    run.step()
    assert [run.state(gpu) for gpu in range(2)] == [state, state]
