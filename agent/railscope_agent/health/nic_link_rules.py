"""Rules about the links, transceivers and PCIe paths of NICs.

A port may be down by design. It counts as down only with two pieces of evidence of a use: its role, traffic or an
outage since the driver was loaded, and peers with a carrier. Sources: IEEE 802.3 clause 91 (forward error
correction); SFF-8636 and CMIS (thresholds of transceivers); sysfs-bus-pci.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from railscope.catalog import cabling, host, kernel, nic as n, nic_settings, pcie, rdma
from railscope.reading import Absent
from railscope_agent.health import hardware_rules, health_facts, nic_signals as s, rule
from railscope_agent.sampling.probe_result import ProbeFinding, format_count

ROLES = frozenset({"compute", "storage"})
MIN_EVIDENCE = 2
MAX_NAMES = 16
LOW_SPEED = 0.9
_GIGABITS = 8e-9
"""Traffic is read in bits, as the speeds of links are."""
RELOAD_SHARE = 0.7
"""Share of the peers; if as many links went down, the driver was loaded again or a switch restarted."""
BIT_ERRORS = s.PeerLimit(s.bit_errors, "bit error ratio {}", ".1e", 1e-6, 30.0, 1e-5)
MAX_UNCORRECTED_PER_SECOND = 0.05
MIN_ERRORS = 5
"""Smallest increase that an error rate over a few seconds may be derived from."""
GIGATRANSFERS_OF_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_DEGRADED, _LOST = 2, 3
_LINK_UP = 5
_TRAFFIC = (n.RDMA_RECEIVED, n.RECEIVED, s.PORT_RECEIVED)
_DOWNS = (n.LINK_DOWNS, s.PORT_LINK_DOWNS, host.LINK_CHANGES)


def _is_down(facts: health_facts.HealthFacts) -> bool:
    return not s.is_up(facts) and sum(map(bool, _evidence(facts))) >= MIN_EVIDENCE


def findings_of_unused_ports(nics: Mapping[str, health_facts.HealthFacts]) -> list[ProbeFinding]:
    """Return a finding about the NICs without a carrier that lack the evidence of a use: they may be unused."""
    down = [name for name, facts in nics.items() if s.known_signal(facts, s.is_up) is False]
    unused = [name for name in down if not _is_down(nics[name])]
    if not unused:
        return []
    names = ", ".join(unused[:MAX_NAMES]) + ("" if len(unused) <= MAX_NAMES else ", ...")
    detail = f"{format_count(len(unused), 'NIC')} without carrier, and without evidence of a use since the driver was loaded: {names}"
    return [ProbeFinding.absent("links", detail, "none for unused ports, else check the cable")]


def _evidence(facts: health_facts.HealthFacts) -> Iterator[str]:
    """Yield each piece of evidence that a NIC should be up, or an empty text."""
    role = facts.labels.get("role", "")
    yield f"its role is {role}" if role in ROLES else ""
    carried = any(
        not isinstance(reading := facts.reading(metric), Absent) and reading for metric in _TRAFFIC
    )
    yield "it was up before" if carried or s.known_signal(facts, s.link_downs) else ""
    ups = s.of_peers(facts, s.is_up)
    yield "most peers are up" if sum(ups) * 2 > len(ups) else ""


def _describe_down(facts: health_facts.HealthFacts) -> str:
    return f"no carrier, although {' and '.join(filter(None, _evidence(facts)))}"


def _has_flapped(facts: health_facts.HealthFacts) -> bool:
    downs = s.link_downs(facts)
    flapped = s.of_peers(facts, lambda of: s.link_downs(of) > 0)
    if flapped and sum(flapped) >= RELOAD_SHARE * len(flapped):
        return False
    # A link that is down went down once for it: that is link_down, not a flap.
    return downs > (0 if s.is_up(facts) else 1)


def _speed(facts: health_facts.HealthFacts) -> float:
    if not s.is_up(facts):
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return s.line_rate(facts)


def _expected_speed(facts: health_facts.HealthFacts) -> float:
    """Return what the port should have: the speed that NIC and switch support, or that of the peers."""
    supported = s.known_signal(facts, s.value_of(nic_settings.EXPECTED_SPEED))
    found = [each for each in (supported, s.usual(facts, _speed)) if each]
    if not found:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return max(found)


def _describe_speed(facts: health_facts.HealthFacts) -> str:
    lanes = s.known_signal(facts, s.value_of(nic_settings.LINK_LANES))
    beside = "" if lanes is None else f" on {lanes:.0f} lanes"
    return f"{_gigabits(_speed(facts))}{beside}, expected {_gigabits(_expected_speed(facts))}"


def _gigabits(speed: float) -> str:
    return f"{speed * 8e-9:g} Gb/s"


def _fec(facts: health_facts.HealthFacts) -> tuple[int, float]:
    return facts.number(nic_settings.FEC_ACTIVE), _speed(facts)


def _usual_fec(facts: health_facts.HealthFacts) -> int:
    """Return the mode that all peers with the same speed use."""
    _, speed = _fec(facts)
    modes = [
        peer.number(nic_settings.FEC_ACTIVE)
        for peer in facts.peers
        if s.known_signal(peer, _speed) == speed
        and not isinstance(peer.reading(nic_settings.FEC_ACTIVE), Absent)
    ]
    if len(modes) < s.MIN_PEERS or len(set(modes)) > 1:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return modes[0]


def _describe_fec(facts: health_facts.HealthFacts) -> str:
    states = nic_settings.FEC_ACTIVE.states
    mode = facts.number(nic_settings.FEC_ACTIVE)
    return f"{states.get(mode, mode)}, peers {states.get(usual := _usual_fec(facts), usual)}"


def _has_bit_errors(facts: health_facts.HealthFacts) -> bool:
    return health_facts.any_holds(
        (BIT_ERRORS.is_exceeded, _has_uncorrected), lambda test: test(facts)
    )


def _has_uncorrected(facts: health_facts.HealthFacts) -> bool:
    """True if data was lost; a link that goes down or comes up loses some as well."""
    has_lost = health_facts.any_holds(
        s.UNCORRECTED,
        lambda metric: (
            s.count(facts, metric) > 1 and s.rate(facts, metric) > MAX_UNCORRECTED_PER_SECOND
        ),
    )
    return has_lost and not s.known_signal(facts, s.link_downs)


def _describe_bit_errors(facts: health_facts.HealthFacts) -> str:
    rates = [s.known_signal(facts, s.rate_of(metric)) for metric in s.UNCORRECTED]
    lost = max(rate or 0.0 for rate in rates)
    ratio = BIT_ERRORS.describe(facts) if s.known_signal(facts, s.bit_errors) is not None else ""
    beyond = f"{lost:.3g} errors per second beyond correction" if lost else ""
    return ", ".join(filter(None, (ratio, beyond)))


_MODULE = (
    ("temperature", "°C", 1.0, cabling.TRANSCEIVER_TEMPERATURE, cabling.TRANSCEIVER_TEMPERATURE_THRESHOLD),
    ("received power", "mW", 1e3, cabling.TRANSCEIVER_RECEIVE_POWER, cabling.TRANSCEIVER_RECEIVE_POWER_THRESHOLD),
    ("transmitted power", "mW", 1e3, cabling.TRANSCEIVER_TRANSMIT_POWER, cabling.TRANSCEIVER_TRANSMIT_POWER_THRESHOLD),
)  # fmt: skip


def _crossings(facts: health_facts.HealthFacts) -> list[str]:
    """Return a text for each reading beyond a threshold of the module; lanes without any power are unused."""
    if not s.is_up(facts):
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    too_hot = s.known_signal(facts, s.count_of(n.TRANSCEIVER_TOO_HOT))
    texts, has_result = [], too_hot is not None
    if too_hot:
        texts.append(f"{too_hot:.0f} events of high temperature")
    for name, unit, factor, metric, thresholds in _MODULE:
        limits = {part[-1]: s.value(facts, thresholds, *part) for part in facts.parts(thresholds)}
        for part in facts.parts(metric):
            number = s.value(facts, metric, *part)
            has_result |= bool(limits)
            lane = "".join(f" of lane {each}" for each in part)
            for limit_name in ("low_alarm", "low_warning", "high_warning", "high_alarm"):
                limit = limits.get(limit_name, 0.0)
                beyond = number < limit if limit_name.startswith("low") else number > limit
                # A limit of 0 is none, and a lane with a power of 0 is unused.
                if limit and number and beyond:
                    shown = f"{number * factor:.3g} {unit}, {limit_name.replace('_', ' ')}"
                    texts.append(f"{name}{lane} {shown} {limit * factor:.3g} {unit}")
                    break
    if not has_result:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return texts


def _is_inactive(facts: health_facts.HealthFacts) -> bool:
    if facts.number(rdma.RDMA_PHYSICAL_STATE) != _LINK_UP:
        return False
    return facts.number(rdma.RDMA_STATE) not in rdma.ACTIVE_STATES


def _describe_inactive(facts: health_facts.HealthFacts) -> str:
    state = facts.number(rdma.RDMA_STATE)
    return f"state {rdma.PORT_STATES.get(state, state)} with a physical link"


def _is_lost(facts: health_facts.HealthFacts) -> bool:
    return health_facts.any_holds(
        (facts.reading(pcie.PCIE_GONE), facts.reading(pcie.PCIE_PATH_STATE)),
        lambda _: (
            facts.reading(pcie.PCIE_GONE) == 1 or facts.reading(pcie.PCIE_PATH_STATE) == _LOST
        ),
    )


def _has_degraded_path(facts: health_facts.HealthFacts) -> bool:
    return facts.number(pcie.PCIE_PATH_STATE) == _DEGRADED


def _describe_path(facts: health_facts.HealthFacts) -> str:
    now, limit = (
        s.value(facts, metric) * _GIGABITS
        for metric in (pcie.PCIE_PATH_BANDWIDTH, pcie.PCIE_PATH_LIMIT)
    )
    lanes = s.known_signal(facts, s.value_of(pcie.PCIE_WIDTH))
    speed = s.known_signal(facts, s.value_of(pcie.PCIE_SPEED))
    link = f", the NIC's link {lanes:.0f} lanes at {speed * 1e-9:g} GT/s" if lanes and speed else ""
    return f"{now:.3g} of {limit:.3g} Gb/s{link}"


def _path_limit(facts: health_facts.HealthFacts) -> float:
    return s.value(facts, pcie.PCIE_PATH_LIMIT)


def _has_low_path(facts: health_facts.HealthFacts) -> bool:
    usual = s.usual(facts, _path_limit)
    if usual is None:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return _path_limit(facts) < LOW_SPEED * usual


def _describe_low_path(facts: health_facts.HealthFacts) -> str:
    usual = s.usual(facts, _path_limit) or 0.0
    return f"{_path_limit(facts) * _GIGABITS:.3g} Gb/s at most, peers {usual * _GIGABITS:.3g} Gb/s"


def _errors(facts: health_facts.HealthFacts, severity: str) -> int:
    """Return the errors of this severity within the window; 0 if they are not counted."""
    change = facts.change(pcie.PCIE_ERRORS, severity)
    return 0 if isinstance(change, Absent) else change.increase


def _has_pcie_errors(facts: health_facts.HealthFacts) -> bool:
    """True for errors beyond correction, or for more corrected ones than a bit error ratio of 1e-12 causes."""
    if _errors(facts, "nonfatal") or _errors(facts, "fatal"):
        return True
    corrected = health_facts.require_value(facts.change(pcie.PCIE_ERRORS, "correctable"))
    speed = s.value(facts, pcie.PCIE_SPEED) * 1e-9
    generation = GIGATRANSFERS_OF_GENERATION.get(speed, max(GIGATRANSFERS_OF_GENERATION.values()))
    usual = hardware_rules.REPLAYS_PER_MINUTE_AND_LANE[generation] * facts.number(pcie.PCIE_WIDTH)
    if corrected.increase >= MIN_ERRORS:
        rate = corrected.rate(health_facts.MINUTE_NS, health_facts.SHORTEST_RATE_NS)
        if rate > ceil(usual):
            return True
    return s.require_readings(facts, pcie.PCIE_ERRORS)


def _describe_pcie_errors(facts: health_facts.HealthFacts) -> str:
    counts = {each: _errors(facts, each) for each in ("fatal", "nonfatal", "correctable")}
    return ", ".join(f"{number} {severity}" for severity, number in counts.items() if number)


_LINK = ("link",)
_PCIE = ("pcie",)
LINK_RULES = (
    rule.HealthRule("link_down", rule.FAILED, _is_down,
        "no carrier, with two of: a role (compute or storage), traffic or an outage since the driver was loaded, most peers up",
        "Railscope: a port may be down by design",
        sources=_LINK, metrics=(host.LINK_UP, rdma.RDMA_UP, *_TRAFFIC, *_DOWNS), describe=_describe_down,
        remedy="check cable, transceivers and switch port", alert="RailscopeLinkDown"),
    rule.HealthRule("link_speed_low", rule.DEGRADED, lambda facts: _speed(facts) < LOW_SPEED * _expected_speed(facts),
        "the link is slower than NIC and switch support or the settings specify, or than the median of the peers",
        "ETHTOOL_MSG_LINKMODES_GET; a link that loses lanes trains at a lower speed",
        sources=_LINK, metrics=(host.LINK_SPEED, s.PORT_RATE, host.LINK_UP, rdma.RDMA_UP, nic_settings.EXPECTED_SPEED, nic_settings.LINK_LANES),
        describe=_describe_speed, remedy="replace the cable; check the switch port", alert="RailscopeLinkSpeed"),
    rule.HealthRule("fec_differs", rule.DEGRADED, lambda facts: _fec(facts)[0] != _usual_fec(facts),
        "the link uses another forward error correction than all peers with the same speed",
        "Railscope: both ends negotiate it from cable and settings",
        sources=("nic_settings",), metrics=(nic_settings.FEC_ACTIVE, host.LINK_SPEED, host.LINK_UP, rdma.RDMA_UP), is_needed=False,
        describe=_describe_fec, remedy="compare the settings of NIC and switch port, and the cables", alert="RailscopeFecErrors"),
    rule.HealthRule("transceiver_degraded", rule.DEGRADED, _has_bit_errors,
        "a bit error ratio above 1e-6 and 30 times the median of the peers, or above 1e-5; or more than 0.05 errors per second beyond correction",
        "IEEE 802.3 clause 91: RS(544,514) corrects 2.4e-4; received data only, the switch counts the other direction",
        sources=("nic",), metrics=(n.CORRECTED, n.LINE_RECEIVED, *s.UNCORRECTED), compares_readings=True,
        describe=_describe_bit_errors, remedy="clean or replace the transceiver", alert="RailscopeFecErrors"),
    rule.HealthRule("transceiver_threshold", rule.DEGRADED, lambda facts: bool(_crossings(facts)),
        "temperature or optical power beyond a warning or alarm threshold of the transceiver itself, while the link is up; or the NIC reported a high temperature of it within ten minutes",
        "SFF-8636, CMIS: thresholds of the vendor in the module",
        sources=("optics",), metrics=(host.LINK_UP, rdma.RDMA_UP, n.TRANSCEIVER_TOO_HOT, *(metric for row in _MODULE for metric in row[3:])), compares_readings=True, is_needed=False,
        describe=lambda facts: "; ".join(_crossings(facts)), remedy="clean or replace the transceiver; check its cooling", alert="RailscopeTransceiver"),
    rule.HealthRule("link_flap", rule.DEGRADED, _has_flapped,
        f"the link went down within ten minutes, and did not on {RELOAD_SHARE:.0%} of the peers",
        "Railscope: a healthy link does not; a driver that is loaded again takes all links down",
        sources=_LINK, metrics=(*_DOWNS, host.LINK_UP, rdma.RDMA_UP), compares_readings=True,
        describe=lambda facts: f"link downs: {s.link_downs(facts):.0f}", remedy="reseat or replace the cable", alert="RailscopeLinkDown"),
    rule.HealthRule("rdma_port_inactive", rule.FAILED, _is_inactive,
        "the RDMA port has a physical link and is not active",
        "sysfs-class-infiniband, state and phys_state: without a subnet manager a port stays in init",
        sources=("rdma",), metrics=(rdma.RDMA_STATE, rdma.RDMA_PHYSICAL_STATE),
        describe=_describe_inactive, remedy="check the subnet manager, or the interface of the port", alert="RailscopeLinkDown"),
)  # fmt: skip
_REPORTS = {
    "failed": ("nic_failed", rule.FAILED, "failed, or could not recover", ("drain", "reboot"), "reset the NIC, or load its driver again"),
    "send_queue_stuck": ("send_queue_stuck", rule.DEGRADED, "has a send queue that makes no progress", (rule.INSPECT,), "reset the NIC, or load its driver again"),
    "module_error": ("module_error", rule.DEGRADED, "has a faulty cable or transceiver", (rule.INSPECT,), "replace the cable or the transceiver"),
    "too_hot": ("nic_too_hot", rule.DEGRADED, "was too hot within ten minutes", (rule.INSPECT,), "check fans and inlet temperature"),
}  # fmt: skip
"""Rules by the driver's report."""
PCIE_RULES = (
    rule.HealthRule("nic_lost", rule.FAILED, _is_lost,
        "the NIC has left the PCI bus, or its registers are all ones",
        "sysfs-bus-pci", sources=_PCIE, metrics=(pcie.PCIE_GONE, pcie.PCIE_PATH_STATE),
        actions=rule.RequiredActions(("drain", "reboot")), remedy="reseat or replace the NIC", alert="RailscopePcieDeviceGone"),
    *(
        rule.HealthRule(reason, state, rule.in_state(kernel.DRIVER_REPORT, report),
            f"the driver reports that the NIC {fault}, and has not reported recovery or a reset since",
            "kernel log", sources=(), metrics=(kernel.DRIVER_REPORT,), is_needed=False,
            actions=rule.RequiredActions(actions), remedy=remedy, alert="RailscopeDeviceFault")
        for report, (reason, state, fault, actions, remedy) in _REPORTS.items()
    ),
    rule.HealthRule("pcie_degraded", rule.DEGRADED, _has_degraded_path,
        "a link between the NIC and the processor has fewer lanes or a lower speed than both of its ends support",
        "sysfs-bus-pci, max_link_width and max_link_speed; NICs and switches do not slow their links to save power",
        sources=_PCIE, metrics=(pcie.PCIE_PATH_STATE, pcie.PCIE_PATH_BANDWIDTH, pcie.PCIE_PATH_LIMIT, pcie.PCIE_WIDTH, pcie.PCIE_SPEED),
        describe=_describe_path, remedy="reseat the NIC; check slot and riser", alert="RailscopePcieDegraded"),
    rule.HealthRule("pcie_path_low", rule.DEGRADED, _has_low_path,
        "the path to the processor supports less bandwidth than the median of the peers",
        "Railscope: NICs of one role have slots of one kind",
        sources=_PCIE, metrics=(pcie.PCIE_PATH_LIMIT,), is_needed=False,
        describe=_describe_low_path, remedy="move the NIC to a slot like those of its peers", alert="RailscopePcieDegraded"),
    rule.HealthRule("pcie_errors", rule.DEGRADED, _has_pcie_errors,
        "a fatal or non-fatal PCIe error within ten minutes, or more corrected ones than a bit error ratio of 1e-12 causes at this speed and width",
        "sysfs-bus-pci-devices-aer_stats; DCGM health: 0.15 to 3.84 replays per minute and lane, by generation",
        sources=_PCIE, metrics=(pcie.PCIE_ERRORS, pcie.PCIE_SPEED, pcie.PCIE_WIDTH), compares_readings=True,
        describe=_describe_pcie_errors, remedy="reseat the NIC; check slot and riser", alert="RailscopePcieAer"),
)  # fmt: skip
