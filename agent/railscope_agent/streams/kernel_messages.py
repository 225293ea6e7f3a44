"""Parser for kernel log messages: errors of GPUs and switches, links, PCIe, out of memory.

Formats and their sources: NVIDIA's Xid catalogue and open-gpu-kernel-modules, Fabric Manager User Guide
(SXid), torvalds/linux drivers/pci/pcie/aer.c, mm/oom_kill.c and the drivers' link messages.

A message starts with the name of its driver, or with its own words. Other parts of a line may be words of a
user, who names control groups below a delegated one (mm/memcontrol.c, mem_cgroup_print_oom_meminfo), processes,
and interfaces of a network namespace. The kernel prints the latter two first. A process has a name of at most 15
bytes (TASK_COMM_LEN), an interface one word of at most 15 bytes (dev_valid_name): words of failures are longer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from railscope.catalog import declare, entities, kernel as c
from railscope.frame import Entity
from railscope_agent.sampling.fact_readers import nonempty_facts
from railscope_agent.streams import device_failures
from railscope_agent.streams.start_reasons import START_REASON

_DOMAIN = r"[0-9a-fA-F]{4,8}"
_PCI = rf"{_DOMAIN}:[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}}"
_LOG_PREFIX = re.compile(
    r"(?:<[0-9]{1,3}>)?(?:kern *:[a-z]+ *: *)?"
    r"(?:(?:\[[^\]]{0,40}\]|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.,+-]{8,30}Z?) *){0,2}"
    r"(?:(?:[^\s/]{1,255} +){0,6}?kernel(?:: *| - - - +))?(?:\[[^\]]{0,40}\] *){0,2}"
)
"""Level, time, host and `kernel:`, as dmesg, journalctl and syslog (RFC 3164, 5424) print them before a message."""
_NAMED_BY_USER = re.compile(
    r"(?:traps: )?(?:\\x[0-9a-f]{2}|[^\\]){1,15}"
    r"(?:\[[0-9]{1,10}\]:? | invoked oom-killer: |: page allocation |: vmalloc | cpuset=|: renamed from )"
)
"""Lines that begin with the name of a process or interface. Some end with the name of a file, group or interface.

Sources: torvalds/linux, arch/x86/mm/fault.c (show_signal_msg), arch/x86/kernel/traps.c, mm/oom_kill.c, mm/page_alloc.c
(warn_alloc), kernel/cgroup/cpuset.c (older versions), net/core/dev.c. The kernel escapes other bytes and backslashes.
"""
# As the driver prints it in src/nvidia/src/kernel/gpu/rc/kernel_rc.c, and older drivers did. A name ends at
# the first comma with a space: the rest of a name that contains one is in the message.
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<pci>{_PCI})(?:\.[0-7])?"
    r"(?: GPU-I:(?P<gi>[0-9]{1,9}))?(?: GPU-CI:(?P<ci>[0-9]{1,9}))?\): (?P<xid>[0-9]{1,10})\b"
    r"(?:,? pid='?<?(?:(?P<pid>[0-9]{1,10})|unknown)>?'?(?=[, ]|$))?"
    r"(?:, name=(?P<name>.*?)(?=, |,?$))?"
    r"(?:[, ]\s*(?P<message>.*))?"
)
# As the driver prints it, see src/common/nvswitch/kernel/inc/error_nvswitch.h.
_SXID = re.compile(
    r"nvidia-(?P<switch>nvswitch[0-9]{1,9}): "
    rf"SXid \(PCI:(?P<pci>{_PCI})(?:\.(?P<function>[0-7]))?\): (?P<sxid>[0-9]{{1,10}}), "
    r"(?:(?P<severity>Fatal|Non-fatal|Correctable)(?:, ?| |$)"
    r"(?:Link (?P<link>[0-9]{1,9})(?: |$))?)?(?P<message>.*)"
)
_SXID_FOLLOW_UP = re.compile(r"Severity [0-9]|Data \{|$")
# What the driver declares without an Xid. Sources: open-gpu-kernel-modules, kernel-open/nvidia/nv.c (a GPU that
# fails to start), src/nvidia/arch/nvalloc/unix/src/osapi.c (RmInitAdapter, a lost GPU), nvstatuscodes.h
# (NV_ERR_GPU_IS_LOST, NV_ERR_RESET_REQUIRED: printed by any failed check); torvalds/linux, drivers/base/dd.c (a failed probe).
_DRIVER_LINE = re.compile(
    rf"(?:NVRM|nvidia[\w-]*)(?::| (?={_PCI}\.[0-7]: )) *"
    r"(?P<message>.*?(?P<failure>"
    r"(?P<lost>fallen off the bus|GPU lost from the bus|NV_ERR_GPU_IS_LOST|GPU is lost)"
    rf"|(?P<init>RmInitAdapter failed|probe of \S+ failed|probe with driver nvidia failed|{START_REASON})"
    r"|(?P<reset>(?<!no )(?:reset|reboot)(?: is)? required|NV_ERR_RESET_REQUIRED"
    r"|(?:requir(?:es|ing)|needs?|must|should|please)(?: an?| to| be| the| gpu| node| system| os)* re(?:set|boot)))"
    r".*)",
    re.IGNORECASE,
)
_DRIVER_EVENTS = {
    "lost": c.GPU_LOST_EVENT,
    "init": c.GPU_INIT_FAILED_EVENT,
    "reset": c.GPU_RESET_EVENT,
}
_GPU_NAME = re.compile(
    rf"\b(?P<pci>{_PCI})(?:\.[0-7])?(?!\w|:[0-9a-fA-F])|\bGPU(?P<number>[0-9]{{1,3}})\b"
)
_GPU_PREFIX = re.compile(rf"GPU {_PCI}(?:\.[0-7])?: ")
# "link becomes ready" is left out: it follows the driver's own message of the same link. The kernel accepts any name without
# slash, colon and space (net/core/dev.c, dev_valid_name). One that begins with a digit has a letter and no dot here: numbers of
# ports and slots, and addresses such as 0000:00:01.0 and 33800000.pcie, are no interfaces.
_LINK = re.compile(
    r"(?:[^/]{0,99}?[ :])?(?!nvidia-)(?P<interface>[A-Za-z][\w.\-]{0,14}|[0-9]{1,14}[A-Za-z][\w\-]{0,13})"
    r"(?:: (?:NIC |Device )?| NIC )"
    r"[Ll]ink (?:is )?(?P<state>[Uu]p|[Dd]own|UP|DOWN)\b"
)
_AER = re.compile(
    rf"(?:[\w.-]+ (?P<domain>{_DOMAIN}):[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}}\.[0-7]: )?"
    r"AER: (?:Multiple )?(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able)(?: \((?:Non-Fatal|Fatal)\))?|Fatal)"
    r" error(?: message)? received"
    r"(?:: id=(?P<requester>[0-9a-fA-F]{4})\b|(?: from|:)? ?(?P<pci>[0-9a-fA-F:.]*))"
)
_OOM = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory)(?: \(oom_kill_allocating_task\))?"
    r": Kill(?:ed)? process (?P<pid>\d+) \((?P<name>.{0,15}?)\)(?= |,|$)"
)
# drivers/net/ethernet/mellanox/mlx5/core/events.c: port_module.
_MLX5 = rf"mlx5_core (?P<pci>{_PCI}\.[0-7])\b.*?"
_PORT_MODULE = re.compile(
    _MLX5 + r"Port module event(?:\[error\])?: module (?P<module>[0-9]{1,9}), "
    r"Cable (?P<state>plugged|unplugged|error|disabled)\b(?:, (?P<problem>[^.]*))?"
)
_UNKNOWN = "unknown"
_NAMELESS = ("<unknown>", "'<unknown>'")


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """A relevant message: event class, entity and facts."""

    event_class: declare.EventClass
    entity: Entity
    facts: dict[str, str]
    gpu_number: str = ""
    """Number of the GPU, if the driver names it by its number only."""
    pci_address: str = ""
    """Address of an interface, if the line names it."""


def strip_log_prefix(line: str) -> str:
    """Return the message of a line as dmesg and syslog write it."""
    prefix = _LOG_PREFIX.match(line)
    return line[prefix.end() :] if prefix else line


def parse_kernel_message(text: str) -> KernelMessage | None:
    """Parse a message of the kernel log; None for messages that are not relevant."""
    for marker, pattern, build in _PARSERS:
        # The marker first: nearly all lines of the log are irrelevant, and a search for a word is much
        # cheaper.
        if marker in text and (match := pattern.match(text)) and (message := build(match)):
            return None if _NAMED_BY_USER.match(text) else message
    return None


def _xid(match: re.Match[str]) -> KernelMessage:
    name = match["name"] or ""
    facts = {
        "process": match["pid"] or "",
        "process_name": "" if name in _NAMELESS else name,
        "gpu_instance": _number(match["gi"]),
        "compute_instance": _number(match["ci"]),
        "message": match["message"] or "",
    }
    entity = Entity(entities.XID, (_address(match["pci"]), _number(match["xid"])))
    return _message(c.XID_EVENT, entity, facts)


def _driver_line(match: re.Match[str]) -> KernelMessage:
    event_class = next(event for name, event in _DRIVER_EVENTS.items() if match[name])
    gpu = _GPU_NAME.search(match["message"])
    address = _address(gpu["pci"]) if gpu and gpu["pci"] else _UNKNOWN
    facts = {"message": _GPU_PREFIX.sub("", match["message"], count=1)}
    entity = Entity(entities.GPU_ADDRESS, (address,))
    return KernelMessage(event_class, entity, facts, (gpu and gpu["number"]) or "")


def _sxid(match: re.Match[str]) -> KernelMessage | None:
    # One error takes several lines: Severity ... and Data {...} follow the line of the error.
    if not match["severity"] and _SXID_FOLLOW_UP.match(match["message"]):
        return None
    severity = (match["severity"] or "unstated").lower().replace("-", "_")
    facts = {
        "pci_address": _address(match["pci"], match["function"] or "0"),
        "link": _number(match["link"]),
        "message": match["message"],
    }
    entity = Entity(entities.SXID, (match["switch"], _number(match["sxid"]), severity))
    return _message(c.SXID_EVENT, entity, facts)


def _link(match: re.Match[str]) -> KernelMessage:
    entity = Entity(entities.LINK_CHANGE, (match["interface"], match["state"].lower()))
    return _message(c.LINK_EVENT, entity, {"message": match.string})


def _aer(match: re.Match[str]) -> KernelMessage:
    printed = match["severity"].lower()
    severity = "nonfatal" if "non-fatal" in printed else "fatal"
    if printed.startswith("correct"):
        severity = "correctable"
    entity = Entity(entities.AER_MESSAGE, (_aer_address(match), severity))
    return _message(c.AER_EVENT, entity, {"message": match.string})


def _aer_address(match: re.Match[str]) -> str:
    """Return the reporting device. Older kernels print its requester id, in the domain of the port."""
    if not match["requester"]:
        return (match["pci"] or "").lower() or _UNKNOWN
    if not match["domain"]:
        return _UNKNOWN
    requester = int(match["requester"], 16)
    bus, device, function = requester >> 8, requester >> 3 & 0x1F, requester & 7
    return f"{match['domain'].lower()}:{bus:02x}:{device:02x}.{function}"


def _oom(match: re.Match[str]) -> KernelMessage:
    facts = {"process": match["pid"], "process_name": match["name"], "message": match.string}
    return _message(c.OOM_EVENT, Entity(entities.NODE), facts)


def _device_failure(match: re.Match[str]) -> KernelMessage | None:
    return _device(match, device_failures.FAILURES)


def _device_reset(match: re.Match[str]) -> KernelMessage | None:
    return _device(match, device_failures.RESETS)


def _device(match: re.Match[str], classes: device_failures.EventClasses) -> KernelMessage | None:
    event_class = device_failures.find_class(match["text"], classes)
    if event_class is None:
        return None
    entity = Entity(entities.PCIE, (_function_address(match["pci"]),))
    return _message(event_class, entity, {"message": match.string})


def _sender(match: re.Match[str]) -> KernelMessage | None:
    is_stuck = device_failures.states(match["text"], device_failures.STUCK)
    return _stuck(match["interface"], match) if is_stuck else None


def _watchdog(match: re.Match[str]) -> KernelMessage:
    return _stuck(match["watched"] or match["named"], match)


def _stuck(interface: str, match: re.Match[str]) -> KernelMessage:
    entity, address = Entity(entities.NIC, (interface,)), match["address"] or ""
    message = _message(c.TRANSMIT_TIMEOUT_EVENT, entity, {"message": match.string})
    is_pci = re.fullmatch(rf"{_PCI}\.[0-7]", address)
    return replace(message, pci_address=_function_address(address) if is_pci else "")


def _port_module(match: re.Match[str]) -> KernelMessage:
    key = _function_address(match["pci"]), _number(match["module"])
    problem = (match["problem"] or "").strip()
    facts = {"state": match["state"], "problem": problem, "message": match.string}
    return _message(c.PORT_MODULE_EVENT, Entity(entities.PORT_MODULE, key), facts)


def _function_address(text: str) -> str:
    address, _, function = text.rpartition(".")
    return _address(address, function)


_PARSERS = (
    # First: the name of a process may be words of a driver.
    ("ut of memory", _OOM, _oom),
    ("Port module event", _PORT_MODULE, _port_module),
    ("NVRM: Xid", _XID, _xid),
    ("SXid", _SXID, _sxid),
    ("NVRM", _DRIVER_LINE, _driver_line),
    ("nvidia", _DRIVER_LINE, _driver_line),
    (": ", device_failures.DEVICE_LINE, _device_failure),
    (": ", device_failures.SENDER_LINE, _sender),
    ("NETDEV WATCHDOG", device_failures.WATCHDOG_LINE, _watchdog),
    (": ", device_failures.DEVICE_LINE, _device_reset),
    ("AER:", _AER, _aer),
    ("ink", _LINK, _link),
)
"""Text that every message of a kind contains, its pattern, and the function that reads a match."""


def _message(
    event_class: declare.EventClass, entity: Entity, facts: dict[str, str]
) -> KernelMessage:
    return KernelMessage(event_class, entity, nonempty_facts(**facts))


def _address(text: str, function: str = "0") -> str:
    """Return the PCI address of a device and function in the format of all labels."""
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}.{function}"


def _number(digits: str | None) -> str:
    """Return a number without the zeros that the driver pads it with."""
    return str(int(digits)) if digits else ""
