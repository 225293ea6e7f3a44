"""Kernel log of the simulated node: a few lines of the boot, and those that the scenario causes.

Records are as /dev/kmsg prints them: priority, sequence number, microseconds since boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from railscope.capture import Moment
from simulator.card_reports import INFO, WARNING, card_reports
from simulator.conditions import Scenario
from simulator.machine import KERNEL, Machine, Port
from simulator.model import NodeModel
from simulator.reports import reports
from simulator.span import NS_PER_US, Span

_BOOT_STEP_US = 350_000


@dataclass(frozen=True, slots=True)
class Message:
    """Kernel message at an offset into the simulation."""

    offset_ns: int
    level: int
    text: str


class KernelLog:
    """Records of a simulation, emitted as time passes."""

    def __init__(self, model: NodeModel) -> None:
        boot = [*_greeting(), *_driver_load(model.machine)]
        self._boot = [
            f"{INFO},{number},{number * _BOOT_STEP_US},-;{text}" for number, text in enumerate(boot)
        ]
        self._number = len(boot)

    def show(self, model: NodeModel, into: Moment) -> None:
        """Add the records since the last call to a `Moment`."""
        into.log += self._boot
        self._boot = []
        boot_us = model.spec.started_boot_ns // NS_PER_US
        messages = _messages(model.scenario, model.machine, model.span)
        for message in sorted(messages, key=lambda message: message.offset_ns):
            at_us = boot_us + message.offset_ns // NS_PER_US
            into.log.append(f"{message.level},{self._number},{at_us},-;{message.text}")
            self._number += 1


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


def _outage(port: Port, outage: Span, span: Span) -> Iterator[Message]:
    if span.passes(outage.start_ns):
        yield Message(outage.start_ns, INFO, _link_line(port, port.nic.link_down))
    if span.passes(outage.end_ns):
        yield Message(outage.end_ns, INFO, _link_line(port, port.nic.link_up))


def _messages(scenario: Scenario, parts: Machine, span: Span) -> Iterator[Message]:
    for port in parts.ports:
        for outage in scenario.link_outages(port.rail):
            yield from _outage(port, outage, span)
    reload_ns = scenario.reload_ns()
    if reload_ns is not None and span.passes(reload_ns):
        for text in _driver_load(parts):
            yield Message(reload_ns, INFO, text)
    for onset_ns, fault in scenario.onsets(span):
        for level, text in card_reports(fault, parts):
            yield Message(onset_ns, level, text)
        for report in reports(fault, parts):
            if report.line:
                yield Message(onset_ns, WARNING, report.line)
