"""Transceivers and cables: identity, temperature, optical power, and the module's own alarms.

A module's data are in its EEPROM (SFF-8472, SFF-8636, CMIS), which the NIC's firmware reads over a
slow bus: rarely, and on the source's own thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.host import Host, Json
from agent.sampling.facts import known
from agent.sampling.source import Finding, Verdict
from agent.sources.look import Look, Looking
from agent.sources.settings.card import physical_interfaces
from agent.topology.cards import Cards
from railscope.catalog import optics as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC, NIC_LANE, NIC_TRANSCEIVER, NIC_TRANSCEIVER_THRESHOLD
from railscope.entity import Entity
from railscope.frame import Column
from railscope.reading import Absent, Reading, reason_of

_MODULE = "module"
_VALUES: Mapping[str, Metric] = {
    "temperature_millicelsius": c.TRANSCEIVER_TEMPERATURE,
    "voltage_microvolts": c.TRANSCEIVER_SUPPLY,
}
_LANE: Mapping[str, Metric] = {
    "receive_power_nanowatts": c.RECEIVE_POWER,
    "transmit_power_nanowatts": c.TRANSMIT_POWER,
    "bias_microamperes": c.BIAS,
}
_THRESHOLDS: Mapping[tuple[str, str], Metric] = {
    ("temperature_", "_millicelsius"): c.TEMPERATURE_THRESHOLD,
    ("receive_power_", "_nanowatts"): c.RECEIVE_POWER_THRESHOLD,
    ("transmit_power_", "_nanowatts"): c.TRANSMIT_POWER_THRESHOLD,
}
"""Prefix and suffix of a threshold's key; the part between them is its name: low_alarm."""
_OTHER_FORM = (AttributeError, KeyError, TypeError, ValueError)
_REMEDY = "install the drop-in network.conf (CAP_NET_ADMIN), or do without these"


class Optics(Looking):
    """Module of every physical interface."""

    name = "optics"
    family = "optics"
    changed = c.TRANSCEIVER_EVENT

    def __init__(self, period_seconds: float = 60.0, cards: Cards | None = None) -> None:
        super().__init__()
        self.period_seconds = period_seconds
        self._cards = cards or Cards()

    def look(self, host: Host) -> Look:
        """Read the module of every NIC."""
        look = Look(described=list(self._cards.look(host)))
        interfaces = physical_interfaces(host)
        for interface in interfaces:
            _look_at(host, interface, look)
        if not interfaces:
            detail = "there is no physical network interface"
            look.findings.append(Finding("transceivers", Verdict.ABSENT, detail))
        return look


def _look_at(host: Host, interface: str, look: Look) -> None:
    part = (interface, _MODULE)
    usual = [(c.TRANSCEIVER_READABLE, Entity(NIC, (interface,)))]
    what = f"transceiver of {interface}"
    try:
        answer = host.call("netlink", _MODULE, interface)
        facts = _facts(answer)
        look.told(part, dict(_readings(interface, answer)))
    except OSError as error:
        reason = reason_of(error)
        detail = error.strerror or str(error)
        if reason in {Absent.UNSUPPORTED, Absent.GONE}:
            look.findings.append(Finding(what, Verdict.ABSENT, f"none is told of: {detail}"))
            return
        look.failure(part, reason, usual)
        denied = reason is Absent.DENIED
        verdict = Verdict.DENIED if denied else Verdict.BROKEN
        look.findings.append(Finding(what, verdict, detail, _REMEDY if denied else ""))
    except _OTHER_FORM as error:
        look.failure(part, Absent.ERROR, usual)
        detail = f"an answer of unknown form ({type(error).__name__}: {error})"
        look.findings.append(Finding(what, Verdict.BROKEN, detail, "report this as a bug"))
    else:
        look.described.append(Entity(NIC_TRANSCEIVER, (interface,), facts))
        identity = _words(facts, "vendor", "part_number", "serial")
        if identity:
            look.watched[part] = {_MODULE: identity}
        detail = _words(facts, "type", "vendor", "part_number") or "a module without a name"
        look.findings.append(Finding(what, Verdict.SUPPORTED, detail))


def _facts(answer: Json) -> dict[str, str]:
    texts = {fact: str(answer.get(fact, "")).strip() for fact in NIC_TRANSCEIVER.facts}
    return known(**texts)


def _words(facts: Mapping[str, str], *names: str) -> str:
    return " ".join(facts[name] for name in names if name in facts)


def _readings(interface: str, answer: Json) -> Iterator[tuple[Column, Reading]]:
    yield (c.TRANSCEIVER_READABLE, Entity(NIC, (interface,))), 1
    for key, metric in _VALUES.items():
        if key in answer:
            yield (metric, Entity(NIC, (interface,))), int(answer[key])
    for lane, values in enumerate(answer.get("lanes", ())):
        for key, metric in _LANE.items():
            if key in values:
                yield (metric, Entity(NIC_LANE, (interface, str(lane)))), int(values[key])
    for key, value in answer.get("thresholds", {}).items():
        for (start, end), metric in _THRESHOLDS.items():
            if key.startswith(start) and key.endswith(end):
                name = key.removeprefix(start).removesuffix(end)
                yield (metric, Entity(NIC_TRANSCEIVER_THRESHOLD, (interface, name))), int(value)
