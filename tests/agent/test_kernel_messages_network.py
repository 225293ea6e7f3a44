"""Messages of the network drivers: power of the slot, cables, and GPUDirect RDMA."""

from __future__ import annotations

import pytest

from railscope.catalog.entities import NIC as NIC_KIND, NODE, PCIE, PORT_MODULE
from railscope_agent.streams.kernel_messages import parse_kernel_message

NIC = "mlx5_core 0000:3b:00.0"


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


DRIVER_TEXTS = {
    "device_failed": [
        "bnxt_en {pci} ens1f0np0: Firmware not responding, status: 0x0",
        "bnxt_en {pci} ens1f0np0: Detected firmware fatal condition, initiating reset",
        "bnxt_en {pci} ens1f0np0: Firmware reset aborted, PCI config space invalid",
        "bnxt_en {pci} ens1f0np0: Fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 100 ms, max wait 200 ms",
        "bnxt_en {pci} ens1f0np0: Error (timeout: 500015) msg {{0x23 0x5a}} len:0",
        "bnxt_en {pci} ens1f0np0: bnxt_open() failed during FW reset",
        "bnxt_re {pci}: __send_message: FW STALL Detected. cmdq[0x11]=0x3 waited (10010 > 10000) msec active 1 ",
        "mlx4_core {pci}: Internal error detected:",
        "mlx4_core {pci}: command 0x54 timed out (go bit not cleared)",
        "mlx5_core {pci}: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
        "mlx5_core {pci}: wait_func:1195:(pid 9): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
        "irdma {pci} irdma0: critical PE Error, GLPE_CRITERR=0x00000010",
        "ice {pci}: ice_init_hw failed, device is unrecoverable",
        "ice {pci} ens1f0: tx_timeout recovery unsuccessful, device is in unrecoverable state.",
        "ice {pci} ens1f0: Rx/Tx is disabled on this device because an unsupported module type was detected.",
        "ionic {pci}: FW heartbeat stalled at 1234",
        "mana {pci}: HWC: Request timed out!",
        "ena {pci} ens5: Keep alive watchdog timeout.",
        "efa {pci} efa_0: Device isn't ready, can't reset device",
        "efa {pci} efa_0: Reset indication didn't turn off",
        "hns3 {pci}: Reset fail!",
        "gve {pci}: Reset failed! !!! DISABLING ALL QUEUES !!!",
        "cxgb4 {pci}: encountered fatal error, adapter stopped",
        "bnxt_en {pci} eth0 (unregistering): Firmware not responding, status: 0xffffffff",
    ],
    "device_reset": [
        "bnxt_en {pci} ens1f0np0: Non-fatal firmware reset event, data1: 0x0, data2: 0x0, min wait 100 ms, max wait 200 ms",
        "irdma {pci} irdma0: Requesting a reset",
        "hns3 {pci}: global reset requested",
        "hns3 {pci}: received reset event, reset type is 3",
        "idpf {pci}: HW reset detected",
        "ionic {pci}: FW Down: Stopping LIFs",
        "ena {pci} ens5: Trigger reset is on",
        "gve {pci}: Device requested reset.",
        "mlx4_core {pci}: device is going to be reset",
        "mlx5_core {pci}: mlx5_fw_fatal_reporter_err_work:1: Issuing FW Reset",
    ],
    "device_too_hot": [
        "bnxt_en {pci} ens1f0np0: Chip temperature has gone above the critical thermal threshold!",
        "mlx5_core {pci}: temp_warn:174:(pid 0): High temperature on sensors with bit set 0 1",
        "mlx4_core {pci}: Temperature Threshold was reached! Threshold: 105 celsius degrees; Current Temperature: 106",
        "igb {pci} eno1: The network adapter was stopped because it overheated",
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DRIVER_TEXTS.items() for text in texts]
)
def test_what_a_driver_reports_of_its_device_is_an_event_of_the_device(
    name: str, text: str
) -> None:
    line = text.format(pci="0000:3b:00.0")
    message = parse_kernel_message(line)
    assert message is not None
    assert (message.event_class.name, message.facts) == (name, {"message": line})
    assert (message.entity.kind, message.entity.key) == (PCIE, ("0000:3b:00.0",))


@pytest.mark.parametrize(
    "line",
    [
        "NETDEV WATCHDOG: ens1f0 (bnxt_en): transmit queue 3 timed out",
        "NETDEV WATCHDOG: ens1f0 (mlx5_core): transmit queue 3 timed out 7560 ms",
        "ice 0000:3b:00.0 ens1f0: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5234 ms",
        "bnxt_en 0000:3b:00.0 ens1f0: TX timeout detected, starting reset task!",
        "ice 0000:3b:00.0 ens1f0: tx_timeout recovery level 1, txqueue 5",
        "tg3 0000:3b:00.0 ens1f0: transmit timed out, resetting",
        "ena 0000:3b:00.0 ens1f0: Found a Tx that wasn't completed on time, qid 3, index 5.",
        "sfc 0000:3b:00.0 ens1f0: TX stuck with port_enabled=1: resetting channels",
        "hv_netvsc 6045bdd5-1b3c-6045-bdd5-1b3c6045bdd5 ens1f0: tx timeout",
        "mlx5_core.sf mlx5_core.sf.2 ens1f0: TX timeout detected",
        "ens1f0: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5234 ms",
        "ionic 0000:3b:00.0 ens1f0: Tx Timeout triggered - txq 2",
        "gve 0000:3b:00.0 ens1f0: Timeout on tx queue, 4",
        "virtio_net virtio0 ens1f0: TX timeout on queue: 0, sq: output.0, vq: 0x1, name: output.0, 5020000 usecs ago",
        "mlx4_en: ens1f0: TX timeout on queue: 4, QP: 0x20b, CQ: 0x91, Cons: 0xffffffff, Prod: 0x7",
    ],
)
def test_a_send_queue_without_progress_is_an_event_of_the_interface(line: str) -> None:
    message = parse_kernel_message(line)
    assert message is not None
    assert (message.event_class.name, message.event_class.severity) == ("transmit_timeout", "error")
    assert (message.entity.kind, message.entity.key) == (NIC_KIND, ("ens1f0",))


@pytest.mark.parametrize("interface", ["10g0", "2", "p1p1_0.100", "tx-timeout"])
@pytest.mark.parametrize(
    "line",
    [
        "{}: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5234 ms",
        "mlx5_core 0000:3b:00.0 {}: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5234 ms",
        "NETDEV WATCHDOG: {} (tg3): transmit queue 3 timed out",
        "mlx5_core 0000:3b:00.0 {}: TX timeout detected",
    ],
)
def test_an_interface_has_any_name_that_the_kernel_accepts(line: str, interface: str) -> None:
    message = parse_kernel_message(line.format(interface))
    assert message is not None
    assert (message.event_class.name, message.entity.key) == ("transmit_timeout", (interface,))


FAILURE_WORDS = ["tx_timeout", "x: tx timeout", "NETDEV WATCHDOG", "TX stuck", "Link is Down"]


@pytest.mark.parametrize("name", FAILURE_WORDS)
@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 123 ({}) total-vm:1kB, anon-rss:1kB",
        "Memory cgroup out of memory: Killed process 123 ({}), UID 1000, total-vm:1kB",
        "Out of memory (oom_kill_allocating_task): Killed process 123 ({}) total-vm:1kB",
    ],
)
def test_the_name_of_a_killed_process_is_no_fault_of_an_interface(line: str, name: str) -> None:
    message = parse_kernel_message(line.format(name))
    assert message is not None
    assert (message.event_class.name, message.entity.kind) == ("out_of_memory", NODE)
    assert message.facts["process_name"] == name


@pytest.mark.parametrize(
    "line", ["INFO: task {}:123 blocked for more than 120 seconds.", "a task {}: tx timeout"]
)
@pytest.mark.parametrize("name", FAILURE_WORDS[:4])
def test_the_name_of_a_process_is_no_fault_of_an_interface(line: str, name: str) -> None:
    assert parse_kernel_message(line.format(name)) is None


PHRASES = {
    "device_failed": [
        "firmware fatal error detected",
        "device is unrecoverable",
        "hw reset failed",
    ],
    "device_reset": [
        "resetting the adapter",
        "device reset requested",
        "initiating firmware reset",
    ],
    "transmit_timeout": ["tx timeout", "transmit timed out"],
}


@pytest.mark.parametrize(
    ("name", "phrase"), [(name, phrase) for name, phrases in PHRASES.items() for phrase in phrases]
)
def test_a_phrase_is_a_fact_unless_it_is_advice_or_denied_or_over(name: str, phrase: str) -> None:
    facts = [
        "{}",
        "{}, please wait",
        "queue 3 is not empty, {}",
        "do not power off. {}",
        "error 5: {} by port 1",
    ]
    others = [
        "Please check the cable if {}", "in case of error you should expect {}", "no {}", "not seen {}",
        "{} is cleared", "{} has been resolved", "{} is disabled", "{} is not supported",
    ]  # fmt: skip
    line = "tg3 0000:3b:00.0 ens1f0: "
    for text in facts:
        message = parse_kernel_message(line + text.format(phrase))
        assert (message and message.event_class.name) == name, text
    for text in others:
        assert parse_kernel_message(line + text.format(phrase)) is None, text


@pytest.mark.parametrize(
    "line",
    [
        "bnxt_en 0000:3b:00.0 ens1f0np0: Please reset the device to apply",
        "bnxt_en 0000:3b:00.0 ens1f0np0: resetting the adapter is disabled",
        "bnxt_en 0000:3b:00.0 ens1f0np0: firmware fatal error detected is cleared",
        "mei_me 0000:3b:00.0: wait for firmware reset",
        "i2c i2c-0: HID: tx timeout",
        "ipmi_si IPI0001:00: ipmi: tx timeout",
        "pcieport 0000:3b:00.0: DPC: error containment capabilities: Int Msg #0",
        "bnxt_en 0000:3b:00.0 ens1f0np0: Chip temperature has gone below the critical thermal threshold!",
        "bnxt_en 0000:3b:00.0 ens1f0np0: RX ring reset failed, rc = -5, falling back to global reset",
        "bnxt_en 0000:3b:00.0 ens1f0np0: PF does not have admin privileges to flash or reset the device",
        "hns3 0000:3b:00.0: HNS Non-Fatal RAS error(status=0x1) identified",
        "ice 0000:3b:00.0: VF reset check timeout on VF 3",
        "ice 0000:3b:00.0: PTP reset successful",
        "mlx5_core 0000:3b:00.0: print_health_info:431:(pid 0): Health issue observed, High load, severity(6) INFO:",
        "mlx5_core 0000:3b:00.0: mlx5_health:1: Not issuing FW reset. Either it's already done or won't help.",
        "octeon_ep 0000:3b:00.0 ens1: Device stopped !!",
        "vfio-pci 0000:3b:00.0: resetting",
        "bnxt_en 0000:3b:00.0 ens1f0np0: renamed from tx_timeout",
        "bnxt_en 0000:3b:00.0 ens1f0np0: renamed from overheated",
        "Bluetooth: hci0: command 0x0c03 tx timeout",
        "nvidia_peermem: module license 'unspecified' taints kernel.",
        "nvidia-peermem: loaded",
        f"{NIC}: Detected insufficient power on the PCIe slot (25W).",
        "nv_peer_mem: module verification failed: signature and/or required key missing - tainting kernel",
        "peer reset the connection: error 104",
        "pcieport 0000:3a:01.0: PCIe slot 3 hotplug",
        "other_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
    ],
)
def test_messages_without_an_event(line: str) -> None:
    assert parse_kernel_message(line) is None
