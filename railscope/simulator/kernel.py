"""The kernel log of the simulated node: a few lines of the boot, and what the scenario causes.

Records are as /dev/kmsg prints them: priority, sequence number, microseconds since boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from railscope.capture import Moment
from railscope.simulator.card_reports import INFO, WARNING, card_reports
from railscope.simulator.conditions import Scenario
from railscope.simulator.machine import KERNEL, Machine, Port
from railscope.simulator.model import NodeModel
from railscope.simulator.reports import reports
from railscope.simulator.span import NS_PER_US

_BOOT_STEP_US = 350_000


@dataclass(frozen=True, slots=True)
class Message:
    """Something the kernel says at an offset into the simulation."""

    offset_ns: int
    level: int
    text: str


class KernelLog:
    """All records of a simulation, given out as time passes."""

    def __init__(self, model: NodeModel) -> None:
        boot_us = model.spec.started_boot_ns // NS_PER_US
        parts = model.machine
        boot = [*_greeting(), *_driver_load(parts)]
        self._records = [
            (-1, f"{INFO},{number},{number * _BOOT_STEP_US},-;{text}")
            for number, text in enumerate(boot)
        ]
        messages = sorted(_messages(model.scenario, parts), key=lambda message: message.offset_ns)
        for number, message in enumerate(messages, len(boot)):
            at_us = boot_us + message.offset_ns // NS_PER_US
            self._records.append(
                (message.offset_ns, f"{message.level},{number},{at_us},-;{message.text}")
            )
        self._next = 0

    def show(self, model: NodeModel, into: Moment) -> None:
        """Put the records that have come up since the last time into a moment."""
        while self._next < len(self._records):
            offset_ns, record = self._records[self._next]
            if offset_ns > model.offset_ns:
                break
            into.log.append(record)
            self._next += 1


def _greeting() -> list[str]:
    return [
        f"Linux version {KERNEL} (buildd@lcy02-amd64-080) (gcc 11.4.0) #64-Ubuntu SMP",
        f"Command line: BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=/dev/nvme0n1p2 ro",
        "smpboot: Allowing 224 CPUs, 0 hotplug CPUs",
    ]


def _driver_load(parts: Machine) -> Iterator[str]:
    for port in parts.ports:
        yield f"{port.nic.driver} {port.pci_address}: {port.nic.loaded}"
    yield f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {parts.model.driver}"
    for port in parts.ports:
        yield _link_line(port, port.nic.link_up)


def _link_line(port: Port, text: str) -> str:
    return f"{port.nic.driver} {port.pci_address} {port.interface}: {text}"


def _messages(scenario: Scenario, parts: Machine) -> Iterator[Message]:
    onset_ns = scenario.onset_ns
    for port in parts.ports:
        for outage in scenario.link_outages(port.rail):
            yield Message(outage.start_ns, INFO, _link_line(port, port.nic.link_down))
            yield Message(outage.end_ns, INFO, _link_line(port, port.nic.link_up))
    reload_ns = scenario.reload_ns()
    if reload_ns is not None:
        for text in _driver_load(parts):
            yield Message(reload_ns, INFO, text)
    for level, text in card_reports(scenario, parts):
        yield Message(onset_ns, level, text)
    for report in reports(scenario, parts):
        if report.line:
            yield Message(onset_ns, WARNING, report.line)
