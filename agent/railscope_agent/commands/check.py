"""`railscope agent check`: support of sources and devices, and faults of GPUs and NICs, with remedies.

Texts that contain a name of a GPU or a NIC have all of its names. Texts are escaped, as some come from
hardware: the vendor of a transceiver is the content of its memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from railscope import __version__
from railscope.catalog.entities import GPU, NIC
from railscope.frame import Entity, Frame
from railscope.reading import REASONS, Absent
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope.wire import SentAt, envelope, pack
from railscope_agent.commands.running_agent import check_running_agent
from railscope_agent.health import health_findings
from railscope_agent.health.fact_collector import NIC_RULES, FactCollector
from railscope_agent.health.nic_link_rules import findings_of_unused_ports
from railscope_agent.health.nic_signals import MIN_PEERS
from railscope_agent.health.setting_rules import GPU_SETTING_RULES
from railscope_agent.sampling.probe_result import (
    ProbeFinding,
    ProbeVerdict,
    fold_findings,
    format_count,
)
from railscope_agent.sampling.status import SourceState
from railscope_agent.service import Agent
from railscope_agent.shipping import (
    collector_client,
    collector_link,
    delivery_result,
)
from railscope_agent.topology.network import IN_OTHER_NAMESPACE, NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.rail_rules import VIRTUAL_FUNCTION, parse_rail_rules

_MARKS = {
    ProbeVerdict.SUPPORTED: "ok     ",
    ProbeVerdict.ABSENT: "absent ",
    ProbeVerdict.DENIED: "DENIED ",
    ProbeVerdict.BROKEN: "BROKEN ",
    ProbeVerdict.AWAITED: "awaited",
}
_RANKS = {ProbeVerdict.BROKEN: 0, ProbeVerdict.DENIED: 1, ProbeVerdict.AWAITED: 2}
"""Sort order of the output, the worst first."""


async def check(
    agent: Agent,
    write: Callable[[str], None],
    read: Callable[[Agent], Awaitable[None]] = Agent.once,
    *,
    live: bool = False,
) -> bool:
    """Read every source and try the collector; return True if nothing is denied or broken.

    With `live`, the agent that runs on this node is queried too. A GPU or NIC that is degraded or has failed
    counts as broken; for an unknown one the findings of its sources count.
    """
    write(printable(f"Railscope agent {__version__} on node {agent.node}"))
    collected = FactCollector()
    agent.on_frame = collected.add
    await read(agent)
    statuses = agent.sampler.statuses.values()
    findings = [finding for s in statuses for finding in (*s.findings, *_readings(s))]
    findings += _node_health(agent, collected)
    findings += _hangs(agent)
    if live:
        findings += await check_running_agent(agent.settings)
    findings += await _collectors(agent)
    entities = [entity for s in statuses if s.frame for _, entity in s.frame.schema.columns]
    names = DeviceNames([*collected.devices.values(), *entities])
    for finding in sorted(
        fold_findings(findings), key=lambda finding: _RANKS.get(finding.verdict, len(_RANKS))
    ):
        text = printable(f"{_MARKS[finding.verdict]} {finding.title}: {finding.detail}")
        write(names.spell_out(text))
        if finding.remedy:
            write(names.spell_out(printable(f"         -> {finding.remedy}")))
    return all(
        finding.verdict in {ProbeVerdict.SUPPORTED, ProbeVerdict.ABSENT} for finding in findings
    )


def _readings(status: SourceState) -> list[ProbeFinding]:
    """Return one finding per absence reason of a source's readings, and their number if it has no findings of its own."""
    frame = status.frame
    name = status.source.name
    if status.is_overdue:
        return [ProbeFinding(name, ProbeVerdict.BROKEN, status.problem, "see the kernel log")]
    findings = []
    if frame is None or not frame.values:
        if not status.findings:
            findings.append(
                ProbeFinding.absent(
                    "nothing to read for", "no such device or file, or switched off", device=name
                )
            )
        return findings
    if not status.findings:
        findings.append(ProbeFinding.supported(name, _extent(frame)))
    if not frame.reasons:
        return findings
    for code, reason in REASONS.items():
        columns = zip(frame.schema.columns, frame.reasons, strict=True)
        metrics = sorted(
            {metric.name for (metric, _), column_code in columns if column_code == code}
        )
        # A reading that is not due is no problem of the node.
        if not metrics or reason is Absent.NOT_DUE:
            continue
        count = format_count(frame.reasons.count(code), "reading")
        detail = f"{count} {reason.label}: {', '.join(metrics)}"
        verdict = ProbeVerdict.ABSENT if reason is Absent.UNSUPPORTED else ProbeVerdict.BROKEN
        remedy = ""
        if reason is Absent.DENIED:
            verdict, remedy = ProbeVerdict.DENIED, status.source.denied_remedy
        findings.append(ProbeFinding(name, verdict, detail, remedy))
    return findings


def _extent(frame: Frame) -> str:
    """Return the number of readings, and of each kind of device that they are about."""
    devices = {(entity.kind.outermost.name, entity.whole_key) for _, entity in frame.schema.columns}
    kinds = Counter(kind for kind, _ in devices)
    about = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
    return f"{format_count(len(frame.values), 'reading')} ({about})"


def _node_health(agent: Agent, collected: FactCollector) -> list[ProbeFinding]:
    """Return the findings about the NICs, and about settings of GPUs that differ from those of their peers."""
    collected.update(agent.sampler.statuses, agent.host.clock.now().boot_ns)
    scanner = NetworkScanner(parse_rail_rules(agent.settings.topology))
    network = scanner.scan(agent.host)
    collected.add_gpu_paths(network)
    elsewhere = _addresses_elsewhere(network)
    nics = {
        name: facts
        for name, facts in collected.nics().items()
        if facts.labels.get("pci_address") not in elsewhere
    }
    gpus = collected.gpus()
    findings = []
    if nics:
        findings += health_findings("health of NICs", "NIC", nics, NIC_RULES)
        findings += findings_of_unused_ports(nics)
    if gpus:
        findings += health_findings("settings of GPUs", "GPU", gpus, GPU_SETTING_RULES)
    return [*findings, *_nics_without_driver(network), *_nics_elsewhere(elsewhere)]


def _nics_without_driver(network: NodeNetwork) -> list[ProbeFinding]:
    """Return one finding per NIC without a driver, if others of its model have one and are in use."""
    in_use = Counter(
        nic.device.model for nic in network.devices if nic.driver and (nic.rdma or nic.interfaces)
    )
    remedy = "read the kernel log; load the driver again, or reseat or replace the NIC"
    return [
        ProbeFinding(
            "NIC",
            ProbeVerdict.BROKEN,
            f"no driver owns it, but {peer_count} NICs of its model ({nic.device.model}) are in use",
            remedy,
            nic.address,
        )
        for nic in network.devices
        if not (nic.driver or nic.rdma or nic.interfaces or nic.role == VIRTUAL_FUNCTION)
        and (peer_count := in_use[nic.device.model]) >= MIN_PEERS
    ]


def _addresses_elsewhere(network: NodeNetwork) -> list[str]:
    """Return the NICs in other network namespaces, such as those of pods: earlier readings do not describe them."""
    return [nic.address for nic in network.devices if nic.reason == IN_OTHER_NAMESPACE]


def _nics_elsewhere(addresses: list[str]) -> list[ProbeFinding]:
    if not addresses:
        return []
    verb = "has" if len(addresses) == 1 else "have"
    count = format_count(len(addresses), "NIC")
    detail = f"{count} {verb} {IN_OTHER_NAMESPACE}: {', '.join(addresses)}"
    return [ProbeFinding.absent("network namespace", detail)]


def _hangs(agent: Agent) -> list[ProbeFinding]:
    """Return one finding per device with a call that has not returned."""
    now_ns = agent.host.clock.now().boot_ns
    return [
        ProbeFinding(
            f"device {device}",
            ProbeVerdict.BROKEN,
            f"{hung.call} has not returned for {(now_ns - hung.since_ns) / SECOND_NS:.0f} s",
            "read the kernel log; reset or replace the device",
        )
        for device, hung in agent.sampler.hung.by_device.items()
    ]


async def _collectors(agent: Agent) -> list[ProbeFinding]:
    """Return a finding about each collector, as listed."""
    try:
        links = collector_link.collector_links(agent.settings.collector)
        clients = [collector_client.CollectorClient(link) for link in links]
    except collector_link.CollectorLinkError as error:
        return [ProbeFinding("collector", ProbeVerdict.BROKEN, str(error))]
    if not clients:
        detail = "collector.url is not set: no frames are shipped"
        return [ProbeFinding.absent("collector", detail)]
    # An envelope without frames: it checks URL, certificate and token, and adds no data.
    greeting = pack(envelope(agent.origin, (), agent_version=__version__))
    findings = []
    for client in clients:
        now = agent.host.clock.now()
        async with client:
            answer = await client.post(greeting, SentAt.from_timestamp(now, agent.origin.boot_id))
        if answer.verdict is delivery_result.EnvelopeDecision.ACKNOWLEDGED:
            detail = f"{client.url} accepts frames of this node"
            findings.append(ProbeFinding.supported("collector", detail))
        else:
            findings.append(ProbeFinding("collector", ProbeVerdict.BROKEN, answer.problem))
    return findings


async def read_twice(agent: Agent, seconds: float) -> None:
    """Have the agent read all sources twice, `seconds` apart."""
    started_ns = agent.clock.now().boot_ns
    await agent.once()
    await agent.clock.sleep_until(started_ns + round(seconds * SECOND_NS))
    await agent.once()


class DeviceNames:
    """All names of the GPUs and NICs of a node, for texts that contain one of them.

    A GPU has a UUID, an index and a PCI address; a NIC has an interface, an RDMA device and a rail.
    """

    def __init__(self, entities: Iterable[Entity]) -> None:
        self._names: dict[str, str] = {}
        for entity in entities:
            name, facts = entity.key[0] if entity.key else "", entity.facts
            if entity.kind is GPU and {"index", "pci_address"} <= facts.keys():
                index, address = facts["index"], facts["pci_address"]
                self._names[name] = f"{name} (index {index}, {address})"
                self._names[address] = f"{address} (GPU {index}, {name})"
            elif entity.kind is NIC and facts.keys() & {"rdma_device", "rail"}:
                rail = f"rail {facts['rail']}" if facts.get("rail") else ""
                details = ", ".join(filter(None, (facts.get("rdma_device"), rail)))
                self._names[name] = f"{name} ({details})"
        # The longest first: an alternative that matches ends the search, and a name may be the beginning of
        # another.
        any_name = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._pattern = (
            re.compile(rf"(?<![\w.:-])(?:{any_name})(?![\w.:-]*\w)") if any_name else None
        )

    def spell_out(self, text: str) -> str:
        """Return a text with the other names of a device appended to each of its names."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._names[match[0]], text)
