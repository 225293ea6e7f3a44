"""Cost of a claim poll: host calls and processor time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from support.machine import FakeHost
from support.tenancy import LISTED, PolledTenancy, keeps_pod, node, pod, start_process, uuid

PODS, GPUS = 50, 8


def fully_used_node() -> FakeHost:
    """Return a host with eight GPUs, each with a pod of two processes, and 42 pods without a GPU."""
    host = node(GPUS)
    pods = []
    for number in range(PODS):
        group = keeps_pod(host, number, f"pod-{number}")
        pods.append(pod(f"pod-{number}", *([uuid(number)] if number < GPUS else [])))
        if number < GPUS:
            for process in range(2):
                start_process(host, number, 1000 + 10 * number + process, group)
    host.calls[LISTED] = pods
    for bus in range(200):
        directory = f"/sys/bus/pci/devices/0000:{bus:02x}:00.0"
        host.files[f"{directory}/vendor"] = "0x10de\n" if bus < GPUS else "0x8086\n"
        host.files[f"{directory}/class"] = "0x030200\n"
        host.files[f"{directory}/driver/bind"] = ""
    return host


def count_calls(host: FakeHost) -> Counter[str]:
    """Count the host calls of tenancy itself: the driver's sources run before it."""
    asked: Counter[str] = Counter()
    for name in ("read", "names", "resolve", "call"):
        real = getattr(host, name)

        def ask(*arguments: Any, name: str = name, real: Any = real) -> Any:
            asked[name if name != "call" else f"{arguments[0]}.{arguments[1]}"] += 1
            return real(*arguments)

        setattr(host, name, ask)
    return asked


def test_calls_per_poll():
    looked = PolledTenancy(fully_used_node())
    for _ in range(2):
        looked.poll()
    assert len(looked.tenancy.active_claims) == GPUS
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == 0
    host = looked.host
    asked = count_calls(host)
    looked.tenancy._poll(host)  # noqa: SLF001 - one poll by itself
    assert {key: count for key, count in asked.items() if key.startswith("nvml.")} == {}, (
        "lists of processes are not read again"
    )
    assert asked["kubelet.List"] == 1
    assert asked["read"] == 2 * GPUS, "the start of each process, and nothing else of it"
    assert asked["names"] <= 20
    assert asked["resolve"] <= GPUS + 1
    assert sum(asked.values()) <= 48, asked
