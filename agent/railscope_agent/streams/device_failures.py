"""Lines of drivers about their PCIe device or interface: failed, reset, too hot, or sending stuck.

The kernel writes what stands before the text of a driver: driver and address (drivers/base/core.c, dev_printk), and an
interface (net/core/dev.c, netdev_printk) or RDMA device (drivers/infiniband/core/device.c, ibdev_printk). The patterns are
phrases that drivers have in common. Sources: torvalds/linux drivers/net/ethernet (bnxt, cxgb4, ena, gve, hns3, i40e, ice,
idpf, ionic, ixgbe, mana, mlx4, mlx5, qede, sfc), drivers/infiniband/hw (bnxt_re, efa, irdma), drivers/pci/pcie (dpc.c, err.c),
and net/sched/sch_generic.c. A failure of a part is not one of the device: a virtual function, a queue pair, a clock.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from railscope.catalog import declare, kernel as c

_PCI = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_STATE = r"(?: \([\w ]{1,30}\))?"
# A user who has an interface in a network namespace names it (net/core/dev.c, dev_change_name).
_TEXT = r": (?!renamed from )"
_INTERFACE = rf"[a-z][\w.\-]{{0,14}}(?={_STATE}: )"
DEVICE_LINE = re.compile(
    rf"[\w.-]+ (?P<pci>{_PCI})(?: [^\s:]{{1,64}})?{_STATE}{_TEXT}(?P<text>.*)", re.IGNORECASE
)
"""A line about a PCI device. An interface that is not registered has its state after its name."""
STUCK_LINE = re.compile(
    rf"(?:[\w.-]+ \S+ |mlx4_en: )(?P<sender>{_INTERFACE}){_STATE}{_TEXT}.*?"
    r"(?:\btx[ _]time-?out\b|\btimeout on tx queue\b)"
    rf"|(?:[\w.-]+ \S+ )?(?P<watched>{_INTERFACE}){_STATE}: NETDEV WATCHDOG: .*timed out"
    # Older kernels write this once per boot (WARN_ONCE), and only the line of the driver the next time.
    r"|NETDEV WATCHDOG: (?P<named>[a-z][\w.\-]{0,14}) \([^)]{0,64}\): transmit queue .*timed out",
    re.IGNORECASE,
)
"""A line about a send queue that makes no progress, by the kernel or by the driver that the kernel calls then."""

_OF_PART = re.compile(
    r"\bVFs?\b|\bvport|\bvhcr\b|\bslave\b|\bPTP\b|\btqp\b|\bqp\b|\bmatcher\b|\bflow rules\b",
    re.IGNORECASE,
)
_DEVICE = (
    r"(?:device|adapter|HCA|NIC|firmware|FW|MFW|IMP|MC|PF|EMP|HW|hardware|core|global|PCI|function)"
)
_FATAL = r"(?<!non-)(?<!non)\bfatal"
_NO_RESET = r"(?<!not )(?<!avoid )(?<!ignoring )"
_HOT = (
    r"\b(?:high|critical) temperature\b",
    r"\btemperature (?:has gone above|too high|threshold was reached|reached)\b",
    r"\btemperature -?[0-9]+ .*(?:exceeds|above)\b",
    r"\bover ?-?heat(?:ed|ing)\b|\bnot meet thermal requirements\b",
)
_FAILED = (
    r"\bDPC: .*(?:ERR_FATAL|unmasked uncorrectable error)",
    rf"{_FATAL} (?:error (?:[0-9a-fx]+ )?detected|condition|firmware reset|attention)\b",
    r"\b(?:encountered|detected|reported)(?: a| firmware)? fatal (?:error|condition)\b",
    r"\b(?:un|non-?)recoverable (?:device |hardware )?(?:state|error)\b|\bis (?:un|non-?)recoverable\b",
    r"\bcan(?:no|')t recover\b|\bhealth compromised\b|\bHealth issue observed,.*severity\([0-3]\)",
    (
        rf"(?:^|[:!.] |\b{_DEVICE} |_)(?:(?:health|tx_timeout|error) )?(?:reset|recovery)\b"
        r"(?:\(\)| [0-9]+| reload| flow| attempt| handling| has| was)* (?:fail|abort|unsuccessful|time-?d? ?out)"
    ),
    rf"\bfail(?:ed|ure)? to (?:soft |hard )?reset (?:the )?{_DEVICE}\b|\b(?:can(?: ?no|')t|unable to|error) reset(?:ting)? (?:the )?device\b",
    r"\bfailed during FW reset\b|\bcan(?:no|')t re-?enable PCI device\b|\bdid not come back after reset\b",
    r"\bReset indication didn't turn\b|\bDriver is in error state\b",
    rf"\b{_DEVICE}\b(?: heartbeat| is)* (?:not respon|unrespon|stall|assert|crash|hang|hung|dead\b|halted)",
    r"\bFW stopped\b|\bdriver for the device stopped because\b",
    r"\bcause a leak of a command resource\b|\bcommand 0x[0-9a-f]+ .*timed out\b|\bError \(timeout: [0-9]+\) msg\b|\bDEV_?CMD\b.*\btime(?:out|d out)\b",
    r"\binternal error\b.*\bdetected\b|\bcritical (?:PE )?error\b|^HMC error$|\bHWC: Request timed out\b",
    r"\bkeep[- ]?alive (?:watchdog )?(?:timeout|expired)\b|\bunit hang\b|\btx hang\b.*\breset",
    r"\brecovery mode (?:detected|due)\b|\badapter stopped\b",
    r"\bRx/Tx is disabled on this device\b|^TX is disabled$|\bmodule is shutdown$|\bCannot start link\b",
)
_RESET = (
    r"(?<!or )(?<!to )\breset(?:ting)? (?:the )?(?:device|adapter|HCA)\b|\brestarting device\b|^function level reset\b",
    rf"\b{_DEVICE} (?:is going to|will) (?:be )?reset\b",
    (
        rf"{_NO_RESET}\b(?:request|initiat|issu|start|trigger|perform|schedul)(?:ing|ed)"
        rf" (?:an? )?(?:{_DEVICE} )?(?:reset|recovery)\b"
    ),
    rf"\b{_DEVICE} reset (?:requested|detected|initiated|event|interrupt)\b",
    r"\btrigger reset is on\b|\bFW Down: Stopping\b|\breceived reset event\b",
)


EventClasses: TypeAlias = tuple[tuple[declare.EventClass, re.Pattern[str]], ...]
"""Event classes in order of precedence, each with the phrases of its lines."""


def _any(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


FAILURES: EventClasses = ((c.DEVICE_HOT_EVENT, _any(_HOT)), (c.DEVICE_FAILED_EVENT, _any(_FAILED)))
RESETS: EventClasses = ((c.DEVICE_RESET_EVENT, _any(_RESET)),)


def find_class(text: str, classes: EventClasses) -> declare.EventClass | None:
    """Return the first of some event classes that a driver's text belongs to."""
    found = next((event_class for event_class, phrases in classes if phrases.search(text)), None)
    return None if found and _OF_PART.search(text) else found
