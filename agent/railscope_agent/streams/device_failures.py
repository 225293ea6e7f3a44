"""Lines of drivers about their PCIe device or interface: failed, reset, recovered, too hot, or sending stuck.

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
_INTERFACE = r"[^\s/:]{1,15}"
# Of PCI, virtio, vmbus (Hyper-V), and the auxiliary bus (mlx5_core.sf.2): dev_name of the parent of an interface.
_ADDRESS = rf"(?:{_PCI}|virtio[0-9]{{1,5}}|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}|[a-z]\w*\.[a-z]\w*\.[0-9]{{1,9}})"
DEVICE_LINE = re.compile(
    rf"[\w.-]+ (?P<pci>{_PCI})(?: [^\s:]{{1,64}})?{_STATE}{_TEXT}(?P<text>.*)", re.IGNORECASE
)
"""A line about a PCI device. An interface that is not registered has its state after its name."""
SENDER_LINE = re.compile(
    rf"(?:[\w.-]+ (?P<address>{_ADDRESS}) |mlx4_en: )(?P<interface>{_INTERFACE}){_STATE}{_TEXT}(?P<text>.*)",
    re.IGNORECASE,
)
"""A line of a driver about an interface: mlx4_en prints no address."""
WATCHDOG_LINE = re.compile(
    rf"(?:(?:[\w.-]+ (?P<address>\S+) )?(?P<watched>{_INTERFACE}){_STATE}: NETDEV WATCHDOG: (?:CPU: [0-9]+: )?"
    # Older kernels write this once per boot (WARN_ONCE), and only the line of the driver the next time.
    rf"|NETDEV WATCHDOG: (?P<named>{_INTERFACE}) \([^)]{{0,64}}\): )transmit queue [0-9]+ timed out"
)
"""A line of the kernel about a send queue that makes no progress."""

_OF_PART = re.compile(
    r"\bVFs?\b|\bvport|\bvhcr\b|\bslave\b|\bPTP\b|\btqp\b|\bqp\b|\bmatcher\b|\bflow rules\b",
    re.IGNORECASE,
)
_DEVICE = (
    r"(?:device|adapter|HCA|NIC|firmware|FW|MFW|IMP|MC|PF|EMP|HW|hardware|core|global|PCI|function)"
)
_FATAL = r"(?<!non-)(?<!non)\bfatal"
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
    rf"\b(?:request|initiat|issu|start|trigger|perform|schedul)(?:ing|ed) (?:an? )?(?:{_DEVICE} )?(?:reset|recovery)\b",
    rf"\b{_DEVICE} reset (?:requested|detected|initiated|event|interrupt)\b",
    r"\btrigger reset is on\b|\bFW Down: Stopping\b|\breceived reset event\b",
)
_RECOVERED = (
    r"\b(?:reset|recovery|re-?initiali[sz]ation|reload)\b(?: (?:is|was|of|the|device|flow|attempt)){0,3} (?:succe|complete|done\b|finished\b)",
    r"\bsuccessfully (?:reset|recovered|re-?initiali[sz]ed)\b|\b(?:reset|recovered|re-?initiali[sz]ed) successfully\b",
    r"^Recovered [0-9]+ EQEs\b|\bhas (?:been )?recovered\b",
    # Of a driver that starts its device: the first line is of the PCI core (drivers/pci/setup-res.c), for all drivers.
    r"^enabling device \(|^firmware version: [0-9]",
)
_STUCK = (
    r"\b(?:tx|transmit)[ _](?:queue [0-9]+ )?time(?:-?out|d out)\b|\btimeout on tx queue\b",
    r"\bTx that wasn't completed on time\b|\bTX stuck\b",
)
_ADVICE = r"\b(?:please|should|must|may|might|if|unless|until|needs? to)\b[^.;!?]*"
_NEGATION = r"\b(?:not|no|never|without|avoid(?:ing)?|ignor(?:e|ing)|skip(?:ping)?)(?: (?!and |but )[\w-]+){0,2} "
_NO_FACT_BEFORE = re.compile(rf"(?:{_ADVICE}|{_NEGATION})$", re.IGNORECASE)
_NO_FACT_AFTER = re.compile(
    r"\w*(?: (?:condition|event|state))?(?: (?:is|are|was|were|has been|have been))?(?: now| already)?"
    r" (?:cleared|resolved|disabled|ignored|skipped|unsupported"
    r"|not (?:supported|allowed|enabled|possible|permitted|needed|required|necessary))\b",
    re.IGNORECASE,
)
"""Text around a phrase that is advice or a condition, denied, or over: the driver does not report that it happens."""


EventClasses: TypeAlias = tuple[tuple[declare.EventClass, re.Pattern[str]], ...]
"""Event classes in order of precedence, each with the phrases of its lines."""


def _any(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


FAILURES: EventClasses = ((c.DEVICE_HOT_EVENT, _any(_HOT)), (c.DEVICE_FAILED_EVENT, _any(_FAILED)))
RESETS: EventClasses = (
    (c.DEVICE_RECOVERED_EVENT, _any(_RECOVERED)),
    (c.DEVICE_RESET_EVENT, _any(_RESET)),
)
STUCK = _any(_STUCK)


def find_class(text: str, classes: EventClasses) -> declare.EventClass | None:
    """Return the first of some event classes that a driver's text belongs to."""
    found = next((event_class for event_class, phrases in classes if states(text, phrases)), None)
    return None if found and _OF_PART.search(text) else found


def states(text: str, phrases: re.Pattern[str]) -> bool:
    """True if a text contains a phrase as a fact."""
    return any(
        not (
            _NO_FACT_BEFORE.search(text[: match.start()]) or _NO_FACT_AFTER.match(text, match.end())
        )
        for match in phrases.finditer(text)
    )
