"""`railscope agent check`: support of sources and devices on this node, with remedies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.commands.device_names import DeviceNames
from agent.commands.running import running
from agent.sampling.budget import governor_of, percent
from agent.sampling.facts import counted
from agent.sampling.governor import Governor
from agent.sampling.meter import Cost
from agent.sampling.sampler import NS
from agent.sampling.source import Finding, Verdict
from agent.sampling.status import UNSUPPORTED, Status
from agent.service import Agent
from agent.shipping.collector_client import CollectorClient, LinkError
from agent.shipping.collector_client import Verdict as Answered
from railscope import __version__
from railscope.reading import REASONS, Absent
from railscope.wire import SentAt, envelope, pack

_MARKS = {
    Verdict.SUPPORTED: "ok     ",
    Verdict.ABSENT: "absent ",
    Verdict.DENIED: "DENIED ",
    Verdict.BROKEN: "BROKEN ",
    Verdict.AWAITED: "awaited",
}
_RANKS = {Verdict.BROKEN: 0, Verdict.DENIED: 1, Verdict.AWAITED: 2}
"""Sort order of the output, the worst first."""
_MS, _MIB = 1_000_000, 1 << 20
_AS_ROOT = "run the agent as root, or do without these"
_DENIED = {
    "gpu_activity": "run the agent as root, or load the nvidia module with"
    " NVreg_RestrictProfilingToAdminUsers=0",
    "gpu_verdict": "see the sources above: what they may not read cannot be judged",
}
"""Remedies for denied reads, by source."""


async def check(
    agent: Agent,
    say: Callable[[str], None],
    read: Callable[[Agent], Awaitable[None]] = Agent.once,
    *,
    live: bool = False,
) -> bool:
    """Read every source and try the collector; return True if nothing is denied or broken.

    With `live`, the agent that runs on this node is queried too. A GPU that is degraded or has failed
    counts as broken; for an unknown GPU the findings of its sources count.
    """
    say(f"Railscope agent {__version__} on node {agent.node}")
    await read(agent)
    statuses = agent.sampler.statuses.values()
    found = [finding for s in statuses for finding in (*s.findings, *_readings(s))]
    found += _hangs(agent)
    found += _costs(agent)
    if live:
        found += await running(agent.settings)
    found.append(await _collector(agent))
    names = DeviceNames(entity for s in statuses if s.frame for _, entity in s.frame.schema.columns)
    for finding in sorted(
        dict.fromkeys(found), key=lambda one: _RANKS.get(one.verdict, len(_RANKS))
    ):
        _say(finding, names, say)
    return all(finding.verdict in {Verdict.SUPPORTED, Verdict.ABSENT} for finding in found)


def _say(finding: Finding, names: DeviceNames, say: Callable[[str], None]) -> None:
    say(names.spell_out(f"{_MARKS[finding.verdict]} {finding.what}: {finding.detail}"))
    if finding.remedy:
        say(names.spell_out(f"         -> {finding.remedy}"))


def _readings(status: Status) -> list[Finding]:
    """Return one finding per absence reason of a source's readings."""
    frame = status.frame
    if status.overdue:
        return [Finding(status.source.name, Verdict.BROKEN, status.problem, "see the kernel log")]
    if frame is None or not frame.reasons:
        return []
    found = []
    for code, reason in REASONS.items():
        names = sorted({
            metric.name
            for (metric, _), given in zip(frame.schema.columns, frame.reasons, strict=True)
            if given == code
        })  # fmt: skip
        if not names or reason is Absent.NOT_DUE:
            continue
        detail = (
            f"{counted(frame.reasons.count(code), 'reading')} {reason.word}: {', '.join(names)}"
        )
        verdict = Verdict.ABSENT if reason is Absent.UNSUPPORTED else Verdict.BROKEN
        remedy = ""
        if reason is Absent.DENIED:
            verdict, remedy = Verdict.DENIED, _DENIED.get(status.source.name, _AS_ROOT)
        found.append(Finding(status.source.name, verdict, detail, remedy))
    return found


def _hangs(agent: Agent) -> list[Finding]:
    """Return one finding per device with a call that has not returned."""
    now_ns = agent.host.clock.now().boot_ns
    return [
        Finding(
            f"device {device}",
            Verdict.BROKEN,
            f"{hung.call} has not returned for {(now_ns - hung.since_ns) / NS:.0f} s",
            "read the kernel log; reset or replace the device",
        )
        for device, hung in agent.sampler.hung.by_device.items()
    ]


def _costs(agent: Agent) -> list[Finding]:
    """Return the measured cost of the reads, and the periods that the governor would set.

    First reads are more expensive than later ones; the metrics endpoint of a running agent has its actual
    cost.
    """
    budget, sources = agent.settings.budget, agent.sampler.sources
    statuses = agent.sampler.statuses
    governor = governor_of(budget, sources, settled_after=1)
    for name, status in statuses.items():
        if status.spent and status.state != UNSUPPORTED:
            governor.took(name, status.spent, 0)
    shares = {name: load.cpu_share(1) for name, load in governor.loads.items()}
    whole = governor.projected
    governor.decide(0, 0)
    found = [
        _cost(statuses[name], shares[name], governor)
        for name in sorted(shares, key=shares.__getitem__, reverse=True)
        if shares[name]
    ]
    detail = f"reading takes {percent(whole)} of a core at the configured periods"
    if not budget.cpu_ratio:
        found.append(Finding("processor budget", Verdict.ABSENT, f"{detail}, none is set"))
    else:
        kept = f"{detail}, budget {percent(budget.cpu_ratio)}"
        remedy = ""
        if whole > budget.cpu_ratio:
            kept = f"{kept}: if reads stay as dear, periods grow until it is kept"
            remedy = "set longer periods, or a greater budget.cpu_ratio"
        found.append(Finding("processor budget", Verdict.SUPPORTED, kept, remedy))
    return [*found, _memory(agent)]


def _cost(status: Status, share: float, governor: Governor) -> Finding:
    name, spent = status.source.name, status.spent
    cost = spent.read if spent else Cost()
    period = status.source.period_seconds
    detail = (
        f"{percent(share)} of a core: {cost.cpu_ns / _MS:.2f} ms of processor time in"
        f" {cost.wall_ns / _MS:.2f} ms every {period:g} s"
    )
    load = governor.loads[name]
    if load.stretch > 1:
        detail += f"; to be read every {period * load.stretch:g} s ({load.why})"
    return Finding(f"cost of {name}", Verdict.SUPPORTED, detail)


def _memory(agent: Agent) -> Finding:
    what, bound = "memory budget", agent.settings.budget.memory_bytes
    try:
        resident = agent.keeper.meter.resident_bytes()
    except OSError as error:
        return Finding(what, Verdict.ABSENT, f"resident memory is not known: {error.strerror}")
    detail = f"{resident / _MIB:.0f} MiB resident"
    if not bound:
        return Finding(what, Verdict.ABSENT, f"{detail}, none is set")
    detail = f"{detail}, budget {bound / _MIB:.0f} MiB"
    if resident <= bound:
        return Finding(what, Verdict.SUPPORTED, detail)
    return Finding(what, Verdict.ABSENT, f"{detail}: not kept", "set a greater budget.memory_bytes")


async def _collector(agent: Agent) -> Finding:
    link = agent.settings.collector
    if not link.url:
        return Finding("collector", Verdict.ABSENT, "no collector.url is set: nothing is shipped")
    try:
        client = CollectorClient(link)
    except LinkError as error:
        return Finding("collector", Verdict.BROKEN, str(error))
    now = agent.host.clock.now()
    greeting = envelope(agent.origin, (), (), agent_version=__version__)
    async with client:
        answer = await client.post(pack(greeting), SentAt.at(now, agent.origin.boot_id))
    if answer.verdict is Answered.ACKNOWLEDGED:
        return Finding("collector", Verdict.SUPPORTED, f"{client.url} accepts this node")
    return Finding("collector", Verdict.BROKEN, answer.problem)
