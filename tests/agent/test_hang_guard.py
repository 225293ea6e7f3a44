"""The device of a call, and the rejection of calls to a hung device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from support.clock import ManualClock
from support.machine import FakeHost

from railscope.frame import NodeTimestamp
from railscope.reading import PRESENT, Absent
from railscope_agent.host import NvmlError
from railscope_agent.sampling.call_devices import device_of, device_of_call
from railscope_agent.sampling.call_time import CallTime
from railscope_agent.sampling.hang_guard import GuardedHost, HungCall, HungCalls
from railscope_agent.sampling.worker_thread import CallAbandonedError


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/sys/class/net/eth0/speed", "net/eth0"),
        ("/sys/class/net/eth0", "net/eth0"),
        ("/sys/class/net", "/sys/class/net"),
        ("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "infiniband/mlx5_0"),
        ("/sys/bus/pci/devices/0000:3b:00.0/class", "pci/0000:3b:00.0"),
        ("/sys/bus/pci/devices", "/sys/bus/pci/devices"),
        ("/sys/block/nvme0n1/stat", "block/nvme0n1"),
        ("/sys/devices/system/edac/mc/mc0/ce_count", "/sys/devices/system/edac/mc/mc0"),
        (
            "/sys/kernel/debug/lustre/llite/fs-ffff88/stats",
            "/sys/kernel/debug/lustre/llite/fs-ffff88",
        ),
        ("/proc/net/dev", "/proc/net/dev"),
    ],
)
def test_the_device_of_a_file(path: str, device: str) -> None:
    assert device_of(path) == device


@pytest.mark.parametrize(
    ("host_interface", "function", "arguments", "device"),
    [
        ("ethtool", "statistics", ("eth0",), "net/eth0"),
        ("netlink", "module", ("eth0",), "net/eth0"),
        ("netlink", "links", (), "netlink.links"),
        ("netlink", "rdma_statistics", ("mlx5_0", 1), "infiniband/mlx5_0"),
        ("nvml", "nvmlDeviceGetUUID", (3,), "nvml/3"),
        ("nvml", "nvmlDeviceGetFieldValues", (3, 83, "185:2"), "nvml/3"),
        ("nvml", "nvmlDeviceGetCount", (), "nvml.nvmlDeviceGetCount"),
        ("nvme", "smart", ("nvme0",), "nvme/nvme0"),
    ],
)
def test_the_device_of_a_call(
    host_interface: str, function: str, arguments: tuple[int | str, ...], device: str
) -> None:
    assert device_of_call(host_interface, function, arguments) == device


def guarded(device: str) -> tuple[FakeHost, GuardedHost]:
    host, hung = FakeHost(), HungCalls()
    hung.by_device[device] = HungCall(device, "a call", host.clock.now().boot_ns)
    host.clock.advance(12)
    return host, GuardedHost(host, hung, CallTime())


def test_a_hung_device_is_not_called_and_others_are() -> None:
    host, guard = guarded("nvml/0")
    host.calls |= {f"nvml.nvmlDeviceGetUUID({gpu})": f"GPU-{gpu}" for gpu in range(2)}
    with pytest.raises(NvmlError, match="a call has not returned for 12 s"):
        guard.call("nvml", "nvmlDeviceGetUUID", 0)
    assert guard.call("nvml", "nvmlDeviceGetUUID", 1) == "GPU-1"
    assert host.asked["nvml.nvmlDeviceGetUUID(0)"] == 0
    assert not guard.take_returned()


def test_all_calls_about_a_nic_are_rejected_together() -> None:
    host, guard = guarded("net/eth0")
    host.files["/sys/class/net/eth0/speed"] = "1\n"
    for ask in (
        lambda: guard.call("ethtool", "statistics", "eth0"),
        lambda: guard.call("netlink", "pause", "eth0"),
        lambda: guard.read("/sys/class/net/eth0/speed"),
        lambda: guard.names("/sys/class/net/eth0"),
        lambda: guard.resolve("/sys/class/net/eth0/device"),
    ):
        with pytest.raises(TimeoutError, match="a call has not returned for 12 s"):
            ask()


def test_kept_files_of_a_hung_device_are_passed_over() -> None:
    host, guard = guarded("net/eth1")
    paths = [f"/sys/class/net/eth{nic}/{file}" for nic in range(3) for file in ("mtu", "speed")]
    host.files |= {path: f"{number}\n" for number, path in enumerate(paths)}
    kept = guard.open_file_group(paths)
    values, reasons = [9] * 8, bytearray(8)
    kept.read_into(values, reasons, 1)
    timeout = Absent.TIMEOUT.value
    assert values == [9, 0, 1, 0, 0, 4, 5, 9]
    assert list(reasons) == [PRESENT] * 3 + [timeout] * 2 + [PRESENT] * 3
    assert kept.text(4) == b"4\n"
    with pytest.raises(TimeoutError):
        kept.text(3)


def test_a_call_that_returned_is_not_abandoned() -> None:
    host, hung = FakeHost(), HungCalls()
    guard = GuardedHost(host, hung, CallTime())
    host.files["/proc/a"] = "1"
    assert guard.read("/proc/a") == b"1"
    assert guard.running_seconds == 0
    assert guard.abandon() is None
    assert not hung.by_device


def test_a_call_that_returns_later_ends_its_thread_and_frees_its_device() -> None:
    host, hung = FakeHost(), HungCalls()
    guard, entered, released = (
        GuardedHost(host, hung, CallTime()),
        threading.Event(),
        threading.Event(),
    )
    came: list[str] = []

    def content() -> str:
        entered.set()
        assert released.wait(60)
        return "1"

    def work() -> None:
        try:
            guard.read("/sys/class/net/eth0/speed")
            came.append("an answer")
        except Exception:  # noqa: BLE001 - what no source may catch
            came.append("a failure")
        except BaseException as error:  # noqa: BLE001 - as above
            came.append(type(error).__name__)

    host.files["/sys/class/net/eth0/speed"] = content
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    call = guard.abandon()
    assert call is not None
    assert (call.device, call.call) == ("net/eth0", "/sys/class/net/eth0/speed")
    assert hung.changes() == [(call, True)]
    with pytest.raises(TimeoutError):
        guard.read("/sys/class/net/eth0/speed")
    released.set()
    thread.join(60)
    assert came == ["CallAbandonedError"]
    assert hung.changes() == [(call, False)]
    assert guard.take_returned()
    assert guard.read("/sys/class/net/eth0/speed") == b"1"


class TurnClock(ManualClock):
    """A clock whose readings take a turn first."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def now(self) -> NodeTimestamp:
        self.turn()
        return super().now()


class TurnTable(dict[str, HungCall]):
    """A table of hung calls that takes a turn before and after a call is stored."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def __setitem__(self, device: str, call: HungCall) -> None:
        self.turn()
        super().__setitem__(device, call)
        self.turn()


@pytest.mark.parametrize("moment", range(3))
def test_a_call_that_returns_while_it_is_abandoned_leaves_its_device_free(moment: int) -> None:
    clock, table, turns = TurnClock(), TurnTable(), iter(range(3))
    host, hung, path = FakeHost(clock), HungCalls(table), "/sys/class/net/eth0/speed"
    guard = GuardedHost(host, hung, CallTime())
    entered, released = threading.Event(), threading.Event()

    def content() -> str:
        entered.set()
        assert released.wait(60)
        return "1"

    def work() -> None:
        with suppress(CallAbandonedError):
            guard.read(path)

    def take_turn() -> None:
        if next(turns, None) == moment:
            released.set()
            thread.join(60)

    host.files[path] = content
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    clock.turn = table.turn = take_turn
    guard.abandon()
    assert released.is_set()
    assert not hung.by_device
    assert guard.read(path) == b"1"
