"""Messages of the network drivers: power of the slot, cables, and GPUDirect RDMA."""

from __future__ import annotations

import pytest
from support.shared import capture_path

from railscope.catalog.entities import NODE, PCIE, PORT_MODULE
from railscope_agent.streams.kernel_messages import parse_kernel_message

NIC = "mlx5_core 0000:3b:00.0"
POWER = "power on the PCIe slot"


@pytest.mark.parametrize(
    ("line", "state", "watts"),
    [
        (f"{NIC}: mlx5_pcie_event:301:(pid 6): Detected insufficient {POWER} (25W).", "insufficient", "25"),
        (f"{NIC} enp59s0: Detected insufficient {POWER} (0W).", "insufficient", "0"),
        (f"{NIC}: mlx5_pcie_event:305:(pid 6): PCIe slot advertised sufficient power (75W).", "sufficient", "75"),
        (f"{NIC}: PCIe slot power capability was not advertised.", "unstated", None),
    ],
)  # fmt: skip
def test_the_power_of_a_slot(line: str, state: str, watts: str | None) -> None:
    message = parse_kernel_message(line)
    assert message is not None
    assert message.event_class.name == "slot_power"
    assert (message.entity.kind, message.entity.key) == (PCIE, ("0000:3b:00.0",))
    assert (message.facts["state"], message.facts.get("watts")) == (state, watts)


@pytest.mark.parametrize(
    ("text", "module", "state", "problem"),
    [
        ("Port module event: module 0, Cable plugged", "0", "plugged", None),
        ("Port module event: module 1, Cable unplugged", "1", "unplugged", None),
        ("Port module event[error]: module 0, Cable error, High Temperature", "0", "error", "High Temperature"),
        ("Port module event[error]: module 12, Cable error, Bus stuck (I2C or data shorted)", "12", "error",
         "Bus stuck (I2C or data shorted)"),
    ],
)  # fmt: skip
def test_cables(text: str, module: str, state: str, problem: str | None) -> None:
    message = parse_kernel_message(f"mlx5_core 0008:3b:00.1: port_module:255:(pid 0): {text}")
    assert message is not None
    assert message.event_class.name == "port_module"
    assert (message.entity.kind, message.entity.key) == (PORT_MODULE, ("0008:3b:00.1", module))
    assert (message.facts["state"], message.facts.get("problem")) == (state, problem)


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
        "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
        "nv_peer_mem: nv_mem_acquire: failed to pin pages",
    ],
)
def test_errors_of_gpudirect_rdma(line: str) -> None:
    message = parse_kernel_message(line)
    assert message is not None
    assert (message.event_class.name, message.entity.kind) == ("peer_memory", NODE)
    assert message.facts == {"message": line}


@pytest.mark.parametrize(
    "line",
    [
        f"{NIC}: poll_health:801:(pid 0): Fatal error 1 detected",
        f"{NIC}: poll_health:819:(pid 0): device's health compromised - reached miss count",
        f"{NIC}: mlx5_fw_fatal_reporter_err_work:632:(pid 2): health recovery failed",
        "pcieport 0000:3b:00.0: DPC: containment event, status:0x1f05, ERR_FATAL received from 0000:61:00.0",
        "pcieport 0000:3b:00.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected",
        "nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:3b:00.0: AER: device recovery failed",
    ],
)
def test_a_device_that_the_kernel_declares_failed_is_an_event(line: str) -> None:
    message = parse_kernel_message(line)
    assert message is not None
    assert (message.event_class.name, message.event_class.severity) == ("device_failed", "error")
    assert (message.entity.kind, message.entity.key) == (PCIE, ("0000:3b:00.0",))


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:3b:00.0: AER: device recovery successful",
        "pcieport 0000:3b:00.0: DPC: error containment capabilities: Int Msg #0",
        "nvidia_peermem: module license 'unspecified' taints kernel.",
        "nvidia-peermem: loaded",
        "nv_peer_mem: module verification failed: signature and/or required key missing - tainting kernel",
        "peer reset the connection: error 104",
        "pcieport 0000:3a:01.0: PCIe slot 3 hotplug",
        "other_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
        f"a process writes: {POWER}",
    ],
)
def test_messages_without_an_event(line: str) -> None:
    assert parse_kernel_message(line) is None


def test_every_error_of_a_captured_log_is_an_event() -> None:
    lines = capture_path("kernel-log/kmsg_kmsg.2.peermem.log").read_text().splitlines()
    errors = [line for line in lines if "nvidia-peermem" in line]
    assert errors
    found = [parse_kernel_message(line.partition(";")[2]) for line in errors]
    assert {message and message.event_class.name for message in found} == {"peer_memory"}
