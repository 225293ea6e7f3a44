"""Xids that count against a GPU until a reset, a driver load, or an all-clear."""

from __future__ import annotations

import pytest
from support.gpus import of_gpu
from support.judging import RECOVERY, old_driver, set_field, verdict_sources
from support.machine import DENIED

from railscope.catalog.xids import judge
from railscope.reading import Absent
from railscope_agent.host import MAX_GPUS, NvmlError
from railscope_agent.streams.xid_matcher import MAX_REMEMBERED, ActionableXid, XidMatcher

ENERGY = 83
LOST = NvmlError(15, "GPU is lost")
FALLEN = "NVRM: Xid (PCI:0000:01:00): 79, pid=41, name=python3, GPU has fallen off the bus."
ALL_CLEAR = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01"


def test_a_fatal_xid_fails_its_gpu_and_no_other() -> None:
    run = verdict_sources(2)
    old_driver(run)
    run.step()
    run.log(1, FALLEN)
    run.step()
    assert (run.state(0), run.reasons(0), run.action(0)) == ("failed", ["xid_fatal"], "reboot")
    assert run.state(1) == "healthy"


ACCESS = "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from status"


@pytest.mark.parametrize(
    ("lines", "states"),
    [
        ([FALLEN, ACCESS], ["failed", "healthy"]),
        ([ACCESS, FALLEN], ["failed", "healthy"]),
        (["NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", ACCESS], ["failed", "healthy"]),
        ([ACCESS], ["degraded", "degraded"]),
        ([FALLEN, "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."],
         ["failed", "degraded"]),
    ],
)  # fmt: skip
def test_failed_accesses_to_a_lost_gpu_are_about_no_other(
    lines: list[str], states: list[str]
) -> None:
    run = verdict_sources(2)
    for gpu in (0, 1):
        old_driver(run, gpu)
    run.step()
    for number, line in enumerate(lines, 1):
        run.log(number, line)
        run.step()
    assert [run.state(0), run.state(1)] == states


OS_REBOOT = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."
RESET_GPU_0 = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


@pytest.mark.parametrize("lines", [[RESET_GPU_0, OS_REBOOT], [OS_REBOOT, RESET_GPU_0]])
def test_a_reboot_of_the_node_is_no_reset_of_the_gpu_that_needs_one(lines: list[str]) -> None:
    for gpus, expected in (
        (1, [("failed", "reboot")]),
        (2, [("failed", "reset_gpu"), ("degraded", "inspect")]),
    ):
        run = verdict_sources(gpus)
        for gpu in range(gpus):
            old_driver(run, gpu)
        run.step()
        for number, line in enumerate(lines, 1):
            run.log(number, line)
        run.step()
        assert [(run.state(gpu), run.action(gpu)) for gpu in range(gpus)] == expected


@pytest.mark.parametrize("lines", [[FALLEN, ACCESS], [ACCESS, FALLEN], [ACCESS, FALLEN, ACCESS]])
def test_the_recovery_of_a_lost_gpu_makes_no_other_one_degraded(lines: list[str]) -> None:
    run = verdict_sources(2)
    for gpu in (0, 1):
        old_driver(run, gpu)
    run.step()
    for number, line in enumerate(lines, 1):
        run.log(number, line)
        run.step()
    set_field(run, ENERGY, 5)
    for _ in range(3):
        run.step()
        assert run.state(1) == "healthy"
    assert run.state(0) == "healthy"


def test_an_xid_counts_until_the_energy_counter_shows_a_reset() -> None:
    run = verdict_sources()
    old_driver(run)
    run.step()
    run.log(1, FALLEN)
    run.steps(600)
    assert run.reasons() == ["xid_fatal"]
    set_field(run, ENERGY, 5)
    run.steps(10)
    assert (run.state(), run.reasons()) == ("healthy", [])
    run.log(2, FALLEN)
    run.step()
    assert run.reasons() == ["xid_fatal"]


def test_an_xid_that_may_have_come_after_the_reset_still_counts() -> None:
    run = verdict_sources()
    old_driver(run)
    run.step()
    set_field(run, ENERGY, 5)
    run.host.clock.advance(4)
    run.log(1, FALLEN, ago_seconds=1)
    run.step(1)
    assert run.reasons() == ["xid_fatal"]


def test_an_xid_of_a_gpu_that_was_lost_is_forgotten_when_the_gpu_is_back() -> None:
    run = verdict_sources()
    old_driver(run)
    run.step()
    well = {key: run.host.calls[key] for key in of_gpu(run.host, 0)}
    run.host.calls |= dict.fromkeys(well, LOST)
    run.log(1, FALLEN)
    run.steps(60)
    assert run.reasons() == ["gpu_lost", "xid_fatal"]
    run.host.calls |= well
    set_field(run, ENERGY, 5)
    run.step()
    assert (run.state(), run.reasons()) == ("healthy", [])


def test_an_xid_is_forgotten_when_the_driver_needs_nothing_after_it() -> None:
    run = verdict_sources()
    run.step()
    run.log(1, FALLEN)
    run.step(4)
    assert run.reasons() == ["xid_fatal"]
    run.step(1)
    assert run.reasons() == []


def test_the_recovery_action_of_the_driver_takes_over_from_the_xid() -> None:
    run = verdict_sources()
    run.step()
    run.log(1, FALLEN)
    set_field(run, RECOVERY, 1)
    run.steps(120)
    assert run.reasons() == ["recovery_action", "xid_fatal"]
    set_field(run, RECOVERY, 0)
    run.step()
    assert run.reasons() == []


@pytest.mark.parametrize("cleared_by", [LOADED, ALL_CLEAR])
def test_the_kernel_log_covers_events_before_the_agent_started(cleared_by: str) -> None:
    for lines in ([FALLEN], [FALLEN, cleared_by], [FALLEN, cleared_by, FALLEN]):
        run = verdict_sources()
        old_driver(run)
        for sequence, text in enumerate(lines):
            run.log(sequence, text, ago_seconds=900 - sequence)
        run.step()
        assert run.state() == ("failed" if lines[-1] == FALLEN else "healthy")


def test_a_flood_of_one_xid_displaces_no_other_and_fills_no_memory() -> None:
    book = XidMatcher()
    for number in range(100):
        for address in ("0000:01:00.0", f"{number:04x}:ff:00.0"):
            for severity in ("Fatal", "Nonfatal"):
                text = f"NETIR {severity} XC0 i0 Link 0{number}"
                book.record_judgement(address, ActionableXid(149, number, judge(149, text)))
            book.record_judgement(
                address, ActionableXid(1000 + number, number, judge(1000 + number, ""))
            )
            book.record_judgement(address, ActionableXid(79, number, judge(79, "")))
    remembered = book.actionable_xids("0000:01:00.0")
    assert [(xid.number, xid.boot_ns) for xid in remembered] == [(149, 99), (1099, 99), (79, 99)]
    assert book.actionable_xids(f"{99:04x}:ff:00.0") == ()
    known = [n for n in range(100) if book.actionable_xids(f"{n:04x}:ff:00.0")]
    assert len(known) == MAX_GPUS - 1
    for number in range(2 * MAX_REMEMBERED):
        book.record_judgement("0000:01:00.0", ActionableXid(number, number, judge(79, "")))
    assert len(book.actionable_xids("0000:01:00.0")) == MAX_REMEMBERED


def test_a_kernel_log_that_is_denied_leaves_xids_open() -> None:
    run = verdict_sources()
    run.host.log.closed = DENIED
    run.step()
    assert run.answer("xid_fatal") is Absent.DENIED
    assert run.state() == "healthy"


def test_a_kernel_log_that_can_no_longer_be_read_leaves_xids_open() -> None:
    run = verdict_sources()
    run.log(1, "NVRM: Xid (PCI:0000:01:00): 31, pid=41, name=python3, MMU Fault")
    run.step()
    run.host.log.broken = run.host.log.closed = DENIED
    run.steps(15)
    assert run.statuses["kernel"].frame is not None
    assert run.answer("xid_fatal") is Absent.DENIED


RESET = "Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62) returned from status"


@pytest.mark.parametrize(
    ("line", "state", "action"),
    [
        (f"NVRM: GPU 0000:01:00.0: {RESET}", "failed", "reset_gpu"),
        ("NVRM: GPU 0000:01:00.0: node reboot required", "failed", "reboot"),
        ("NVRM: GPU at PCI:0000:01:00: GPU lost from the bus", "failed", "reboot"),
        ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.", "degraded", "inspect"),
        (f"NVRM: {RESET}", "degraded", "inspect"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "failed", "reboot"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x9 (New)", "failed", "inspect"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x5 (IMEX)", "degraded", "inspect"),
        ("NVRM: Xid (PCI:0000:01:00): 777, something new", "degraded", "inspect"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "degraded", "inspect"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 29999, no severity", "degraded", "inspect"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 23001, Fatal, Link 0 ingress ECC", "failed", "reboot"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10003, unhandled interrupt", "failed", "reboot"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 23001, Non-fatal, Link 0 ingress ECC", "healthy", "none"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 3 egress", "healthy", "none"),
    ],
)  # fmt: skip
def test_what_the_driver_declares_counts_until_it_is_loaded_again(
    line: str, state: str, action: str
) -> None:
    run = verdict_sources(2)
    old_driver(run, 0)
    old_driver(run, 1)
    run.step()
    run.log(1, line)
    run.step()
    assert (run.state(0), run.action(0)) == (state, action)
    assert run.state(1) == ("healthy" if "01:00" in line else state)
    run.log(2, LOADED)
    run.step()
    assert [run.state(gpu) for gpu in (0, 1)] == ["healthy", "healthy"]


FABRIC = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 23001, Fatal, Link 0 ingress ECC"
PORT = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


@pytest.mark.parametrize(
    ("line", "state", "action"), [(FABRIC, "failed", "reboot"), (PORT, "degraded", "inspect")]
)
def test_a_gpu_without_a_recovery_action_clears_no_fault_of_a_switch(
    line: str, state: str, action: str
) -> None:
    run = verdict_sources(2)
    run.step()
    run.log(1, line)
    run.step(1)
    for _ in range(60):
        assert [(run.state(gpu), run.action(gpu)) for gpu in (0, 1)] == [(state, action)] * 2
        run.step()
    run.log(2, ALL_CLEAR)
    run.step()
    assert [run.state(gpu) for gpu in (0, 1)] == [state, state]
    set_field(run, ENERGY, 5, 0)
    run.steps(10)
    assert [run.state(gpu) for gpu in (0, 1)] == ["healthy", state]
    run.log(3, LOADED)
    run.step()
    assert [run.state(gpu) for gpu in (0, 1)] == ["healthy", "healthy"]


def test_a_line_without_a_gpu_is_about_the_only_one() -> None:
    run = verdict_sources()
    old_driver(run)
    run.step()
    run.log(1, f"NVRM: {RESET}")
    run.step()
    assert (run.state(), run.action()) == ("failed", "reset_gpu")
