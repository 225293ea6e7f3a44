"""Kernel log of the simulated node: a few lines of the boot, and those that the scenario causes.

Records are as /dev/kmsg prints them: priority, sequence number, microseconds since boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from railscope.capture import CaptureMoment
from railscope.timestamps import MICROSECOND_NS
from railscope_simulator import conditions, node_hardware, node_model
from railscope_simulator.driver_reports import (
    APPLICATION_ERRORS,
    INFO,
    WARNING,
    ReportingDriver,
    driver_reports,
    nic_reports,
)
from railscope_simulator.spec import TimeSpan

_BOOT_STEP_US = 350_000
_GREETING = (
    f"Linux version {node_hardware.KERNEL} (buildd@lcy02-amd64-080) (gcc 11.4.0) #64-Ubuntu SMP",
    f"Command line: BOOT_IMAGE=/boot/vmlinuz-{node_hardware.KERNEL} root=/dev/nvme0n1p2 ro",
    "smpboot: Allowing 224 CPUs, 0 hotplug CPUs",
)


@dataclass(frozen=True, slots=True)
class SimulatedKernelMessage:
    """Kernel message at an offset into the simulation."""

    offset_ns: int
    level: int
    text: str


class SimulatedKernelLog:
    """Records of a simulation, emitted as time passes."""

    def __init__(self, model: node_model.NodeModel) -> None:
        boot = [*_GREETING, *_driver_load(model.machine)]
        self._boot = [
            f"{INFO},{number},{number * _BOOT_STEP_US},-;{text}" for number, text in enumerate(boot)
        ]
        self._number = len(boot)

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Add the records since the last call to a `CaptureMoment`."""
        into.log += self._boot
        # Once: a capture contains the records since the last moment.
        self._boot = []
        boot_us = model.spec.started_boot_ns // MICROSECOND_NS
        messages = _messages(model.scenario, model.machine, model.span)
        # In the order of time, as sequence numbers are.
        for message in sorted(messages, key=lambda message: message.offset_ns):
            at_us = boot_us + message.offset_ns // MICROSECOND_NS
            into.log.append(f"{message.level},{self._number},{at_us},-;{message.text}")
            self._number += 1


def _driver_load(parts: node_hardware.NodeHardware) -> Iterator[str]:
    for port in parts.ports:
        yield f"{port.nic.driver} {port.pci_address}: {port.nic.loaded}"
    yield f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {parts.model.driver}"
    for port in parts.ports:
        yield _link_line(port, port.nic.link_up)


def _link_line(port: node_hardware.SimulatedPort, text: str) -> str:
    return f"{port.nic.driver} {port.pci_address} {port.interface}: {text}"


def _outage(
    port: node_hardware.SimulatedPort, outage: TimeSpan, span: TimeSpan
) -> Iterator[SimulatedKernelMessage]:
    if span.passes(outage.start_ns):
        yield SimulatedKernelMessage(outage.start_ns, INFO, _link_line(port, port.nic.link_down))
    if span.passes(outage.end_ns):
        yield SimulatedKernelMessage(outage.end_ns, INFO, _link_line(port, port.nic.link_up))


def _messages(
    scenario: conditions.Scenario, parts: node_hardware.NodeHardware, span: TimeSpan
) -> Iterator[SimulatedKernelMessage]:
    for port in parts.ports:
        for outage in scenario.link_outages(port.rail, span):
            yield from _outage(port, outage, span)
    reload_ns = scenario.reload_ns()
    if reload_ns is not None and span.passes(reload_ns):
        for text in _driver_load(parts):
            yield SimulatedKernelMessage(reload_ns, INFO, text)
    for offset_ns, index, number in scenario.application_errors(span):
        driver = ReportingDriver(parts, parts.gpus[index])
        report = driver.xid(number, f"pid=4711, name=python3, {APPLICATION_ERRORS[number]}")
        yield SimulatedKernelMessage(offset_ns, WARNING, report.line)
    for onset_ns, fault in scenario.onsets(span):
        for level, text in nic_reports(fault, parts):
            yield SimulatedKernelMessage(onset_ns, level, text)
        for report in driver_reports(fault, parts):
            if report.line:
                yield SimulatedKernelMessage(onset_ns, WARNING, report.line)
