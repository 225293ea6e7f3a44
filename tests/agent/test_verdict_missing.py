"""Verdicts on GPUs that NVML never listed: lost, hung or without a driver before the first poll."""

from __future__ import annotations

import pytest
from support.gpus import of_gpu
from support.judging import ACTION, HEALTH, REASON, VerdictSources, plug, verdict_sources
from support.reading import readings

from railscope.catalog import gpu_health as h
from railscope.reading import Absent
from railscope_agent.host import NvmlError

COUNT = "nvml.nvmlDeviceGetCount()"
LOST = NvmlError(15, "GPU is lost")
INFORMATION = "/proc/driver/nvidia/gpus/0000:02:00.0/information"


def states_of(run: VerdictSources) -> dict[str, str]:
    """The state of every GPU in the latest verdict, by its name."""
    found = readings(run.frame).items()
    return {
        key[0]: h.GPU_HEALTH.states[state]
        for (name, key), state in found
        if name == HEALTH and isinstance(state, int)
    }


def test_a_driver_that_is_sick_from_the_start_makes_the_gpus_of_the_bus_unknown() -> None:
    run = verdict_sources()
    run.host.calls[COUNT] = NvmlError(18, "driver was updated")
    run.step()
    assert states_of(run) == {"0000:01:00.0": "unknown"}
    run.host.calls[COUNT] = 1
    run.step(61)
    run.step()
    assert states_of(run) == {"GPU-0": "healthy"}


@pytest.mark.parametrize("uuid", ["GPU-1", ""])
def test_a_gpu_that_was_lost_before_the_start_has_failed_until_it_is_back(uuid: str) -> None:
    run = verdict_sources(2)
    there = {call: run.host.calls[call] for call in of_gpu(run.host, 1)}
    run.host.calls |= dict.fromkeys(there, LOST)
    if uuid:
        run.host.files[INFORMATION] = f"GPU UUID: \t {uuid}\n"
    run.step()
    name = uuid or "0000:02:00.0"
    assert states_of(run) == {"GPU-0": "healthy", name: "failed"}
    found = readings(run.frame)
    assert found[REASON, (name, "gpu_lost")] == 1
    assert found[REASON, (name, "driver_unresponsive")] == 0
    assert [event.entity.key for event in run.events] == [(name,)]
    run.host.calls |= there
    run.step(61)
    run.step()
    assert states_of(run) == {"GPU-0": "healthy", "GPU-1": "healthy"}


def test_the_xids_of_a_gpu_that_was_lost_before_the_start_count() -> None:
    run = verdict_sources(2)
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), LOST)
    run.log(
        1, "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"
    )
    run.step()
    assert readings(run.frame)[REASON, ("0000:02:00.0", "xid_fatal")] == 1
    assert readings(run.frame)[REASON, ("0000:02:00.0", "gpu_lost")] == 1


def test_a_gpu_whose_firmware_failed_before_the_start_is_not_called_lost() -> None:
    run = verdict_sources(2)
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), NvmlError(10, "timeout"))
    run.log(1, "NVRM: Xid (PCI:0000:02:00): 119, pid=7, name=python3, Timeout after 6s")
    run.step()
    found = readings(run.frame)
    assert found[REASON, ("0000:02:00.0", "gpu_lost")] is Absent.TIMEOUT
    assert found[REASON, ("0000:02:00.0", "driver_unresponsive")] == 1
    assert states_of(run)["0000:02:00.0"] == "failed"


def test_a_gpu_that_was_lost_and_is_given_away_is_no_longer_judged() -> None:
    run = verdict_sources(2)
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), LOST)
    run.step()
    plug(run.host, "0000:02:00.0", "vfio-pci")
    run.step()
    run.step()
    assert states_of(run) == {"GPU-0": "healthy"}


PROBE = "nvidia: probe of 0000:02:00.0 failed with error -1"
FELL = r"NVRM: The NVIDIA GPU 0000:02:00.0\x0aNVRM: (PCI ID: 10de:20b2) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands."
RM_INIT = "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x62:0xffff:2477)"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01"


def unbind(run: VerdictSources, address: str) -> None:
    """Leave a GPU on the bus without a driver."""
    del run.host.links[f"/sys/bus/pci/devices/{address}/driver"]


# The driver reports its load after the probes.
@pytest.mark.parametrize("lines", [[PROBE, LOADED], [FELL], [FELL, PROBE]])
def test_a_gpu_whose_probe_failed_has_failed_until_the_driver_starts_it(lines: list[str]) -> None:
    run = verdict_sources(2)
    there = {call: run.host.calls.pop(call) for call in of_gpu(run.host, 1)}
    run.host.calls[COUNT] = 1
    unbind(run, "0000:02:00.0")
    for line in lines:
        run.log(1, line)
    run.step()
    assert states_of(run) == {"GPU-0": "healthy", "0000:02:00.0": "failed"}
    assert readings(run.frame)[REASON, ("0000:02:00.0", "not_initialized")] == 1
    run.host.calls |= {**there, COUNT: 2}
    plug(run.host, "0000:02:00.0", "nvidia")
    run.step(61)
    run.step()
    assert states_of(run) == {"GPU-0": "healthy", "GPU-1": "healthy"}


NVIDIA_GPU = r"NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:1db5)\x0aNVRM: installed in this system is not supported by"


@pytest.mark.parametrize(
    ("line", "failure", "fix"),
    [
        (rf"{NVIDIA_GPU} open\x0aNVRM: nvidia.ko because it", PROBE, "proprietary kernel modules"),
        (rf"{NVIDIA_GPU} the\x0aNVRM: NVIDIA 595.71.05 driver release.", PROBE, "driver branch"),
        ("NVRM: RmFetchGspRmImages: No firmware image found", RM_INIT, "install the GSP firmware"),
        (
            "nvidia 0000:02:00.0: Direct firmware load for nvidia/595.71.05/gsp_ga10x.bin failed with error -2",
            RM_INIT,
            "install the GSP firmware",
        ),
        (
            "NVRM: _kgspFwContainerVerifyVersion: GSP firmware image version mismatch: got version 570.172.08, expected version 570.190",
            RM_INIT,
            "firmware of the same version",
        ),
    ],
)
def test_a_reason_of_the_driver_is_stated_with_its_line_and_decides_on_the_action(
    line: str, failure: str, fix: str
) -> None:
    run = verdict_sources(2)
    for call in of_gpu(run.host, 1):
        del run.host.calls[call]
    run.host.calls[COUNT] = 1
    unbind(run, "0000:02:00.0")
    run.log(1, line)
    run.log(2, failure)
    run.step()
    gpu = ("0000:02:00.0",)
    found = readings(run.frame)
    assert h.GPU_HEALTH.states[found[HEALTH, gpu]] == "failed"
    assert h.GPU_ACTION.states[found[ACTION, gpu]] == "inspect"
    assert found[REASON, (*gpu, "driver_unsuitable")] == 1
    assert found[REASON, (*gpu, "not_initialized")] == 0
    (detail,) = [
        finding.detail for finding in run.read("gpu_verdict").findings if finding.device == gpu[0]
    ]
    assert line[-20:].rstrip(".") in detail
    assert fix in detail
    # A later failure of the same GPU for which the driver states no reason.
    run.host.clock.advance(60)
    run.log(3, PROBE)
    run.step()
    assert readings(run.frame)[REASON, (*gpu, "not_initialized")] == 1


def test_a_gpu_whose_probe_failed_may_be_given_to_a_virtual_machine() -> None:
    run = verdict_sources(2)
    run.host.calls[COUNT] = 1
    plug(run.host, "0000:02:00.0", "vfio-pci")
    run.log(1, PROBE)
    run.step()
    assert states_of(run) == {"GPU-0": "healthy"}


@pytest.mark.parametrize("listed", [1, 2])
def test_a_bound_gpu_that_could_not_be_started_has_failed(listed: int) -> None:
    run = verdict_sources(2)
    run.host.calls |= dict.fromkeys(of_gpu(run.host, 1), NvmlError(999, "unknown"))
    run.host.calls[COUNT] = listed
    run.log(1, RM_INIT)
    run.step()
    assert readings(run.frame)[REASON, ("0000:02:00.0", "not_initialized")] == 1
    assert states_of(run)["0000:02:00.0"] == "failed"


@pytest.mark.parametrize(
    ("code", "state", "reason", "action"),
    [
        (15, "failed", "gpu_lost", "reboot"),
        (16, "failed", "reset_required", "reset_gpu"),
        (999, "unknown", "driver_unresponsive", "inspect"),
        (77, "unknown", "driver_unresponsive", "inspect"),
    ],
)
def test_one_cause_has_one_verdict_whenever_the_agent_started(
    code: int, state: str, reason: str, action: str
) -> None:
    for reads_before in (0, 1):
        run = verdict_sources(2)
        run.host.files[INFORMATION] = "GPU UUID: \t GPU-1\n"
        run.steps(5 * reads_before)
        there = {call: run.host.calls[call] for call in of_gpu(run.host, 1)}
        run.host.calls |= dict.fromkeys(there, NvmlError(code, "as NVML reports it"))
        run.steps(70)
        assert (run.state(1), run.reasons(1), run.action(1)) == (state, [reason], action)
        run.host.calls |= there
        run.steps(70)
        assert run.state(1) == "healthy"


@pytest.mark.parametrize("code", [1, 9, 12, 18, 999])
def test_a_failure_of_nvml_itself_loses_no_gpu(code: int) -> None:
    run = verdict_sources(2)
    run.step()
    there = {call: answer for call, answer in run.host.calls.items() if call.startswith("nvml.")}
    run.host.calls |= dict.fromkeys(there, NvmlError(code, "no NVML"))
    run.steps(70)
    assert states_of(run) == {"GPU-0": "unknown", "GPU-1": "unknown"}
    run.host.calls |= there | dict.fromkeys(of_gpu(run.host, 1), NvmlError(2, "no such index"))
    run.host.calls[COUNT] = 1
    run.steps(70)
    assert states_of(run) == {"GPU-0": "healthy", "GPU-1": "failed"}


def test_a_call_for_a_part_that_needs_a_reset_is_one_for_its_gpu() -> None:
    run = verdict_sources(2)
    run.step()
    run.host.calls["nvml.nvmlDeviceGetEncoderUtilization(1)"] = NvmlError(16, "reset required")
    run.step()
    assert (run.state(0), run.reasons(1)) == ("healthy", ["reset_required"])


@pytest.mark.parametrize("call", ["PciInfo(1)", "UUID(1)", "Name(1)"])
def test_a_gpu_that_cannot_be_identified_until_a_reset_needs_one(call: str) -> None:
    run = verdict_sources(2)
    run.host.files[INFORMATION] = "GPU UUID: \t GPU-1\n"
    run.step()
    there = run.host.calls[f"nvml.nvmlDeviceGet{call}"]
    run.host.calls[f"nvml.nvmlDeviceGet{call}"] = NvmlError(16, "reset required")
    run.steps(70)
    assert (run.state(0), run.reasons(1)) == ("healthy", ["reset_required"])
    run.host.calls[f"nvml.nvmlDeviceGet{call}"] = there
    run.steps(70)
    assert [run.state(gpu) for gpu in (0, 1)] == ["healthy", "healthy"]


@pytest.mark.parametrize("reads_before", [0, 1])
def test_gpus_are_lost_if_nvml_lists_none_although_the_driver_has_them(reads_before: int) -> None:
    run = verdict_sources(2)
    run.steps(5 * reads_before)
    run.host.calls[COUNT] = 0
    run.steps(70)
    assert list(states_of(run).values()) == ["failed", "failed"]
    run.host.calls[COUNT] = 2
    run.steps(70)
    assert states_of(run) == {"GPU-0": "healthy", "GPU-1": "healthy"}
