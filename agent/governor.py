"""The governor: how often each source may be read, for the agent to stay inside its budget.

It is told what every read costs and gives each source a stretch: its period is multiplied by 1, 2,
4, ... so that all reads together, with what else the agent does, take no more of a core than the
budget allows. The dearest source is stretched first, and last let go again. A source that makes its
thread wait without using the processor is stretched too: its neighbours wait with it.

No source pays for another: one that takes no more than its fair share is left alone, even where
the dear one bears no longer period. Such a budget cannot be kept, and the governor says so.

Pure arithmetic: no clock, no input, no output. Instants are those of the boot clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.meter import Spent
from agent.trend import SETTLED_AFTER, Trend
from railscope.catalog.agent import GOVERNOR_STATES

NS = 1_000_000_000
WITHIN, STRETCHING, AT_LIMIT = GOVERNOR_STATES

MOST_STRETCH = 64
THREAD_SHARE = 0.25
"""The share of its time that a thread may be in reads; neighbours wait as long."""
RELAXED = 0.8
"""Periods grow when the budget is passed, and shrink when they would fit into this part of it."""
SOURCES_SHARE = 0.25
"""The part of the budget that is for reading, however dear the rest is."""
HOLD_NS = 60 * NS
"""How long a stretch stays at least before it is relaxed."""
DECIDE_NS = 1 * NS
WINDOW_NS = 10 * NS
"""The rest (page, shipping, the loop) is what the process used in a window, without reads."""
WINDOWS_OF_USE = 6
REPROBE_NS = 60 * NS
CPU, BLOCKING, ROOM = "processor time", "blocks its thread", "room again"


@dataclass(frozen=True, slots=True)
class Governed:
    """A source as the governor sees it: its configured period, and the longest that it bears."""

    name: str
    family: str
    period_ns: int
    longest_ns: int

    @property
    def most_stretch(self) -> int:
        """The greatest stretch that the longest period allows."""
        most = 1
        while most < MOST_STRETCH and self.period_ns * most * 2 <= self.longest_ns:
            most *= 2
        return most


@dataclass(slots=True)
class _Demand:
    """What reads and looks at what is there take, of the processor or of the time."""

    read: Trend
    probe: Trend

    def share(self, period_ns: int, probes_every_ns: int) -> float:
        """The share of a core, or of a thread's time, at a period."""
        probes_every_ns = max(probes_every_ns, period_ns)
        return self.read.settled / period_ns + self.probe.settled / probes_every_ns


class Load:
    """A source under the governor: what it takes, and how far it is stretched."""

    def __init__(self, source: Governed, settled_after: int = SETTLED_AFTER) -> None:
        self.source = source
        self.most = source.most_stretch
        self.stretch = 1
        self.why = ""
        self.changed_ns = 0
        self._settled_after = settled_after
        self.forget()

    def forget(self) -> None:
        """The source is not on this machine, or no longer."""

        def demand() -> _Demand:
            return _Demand(Trend(self._settled_after), Trend(self._settled_after))

        self._cpu, self._wall = demand(), demand()
        self._probed_ns: int | None = None
        self._probes_every_ns = REPROBE_NS

    def take(self, spent: Spent, at_ns: int) -> None:
        """Take what a read cost."""
        self._cpu.read.add(spent.read.cpu_ns, at_ns)
        self._wall.read.add(spent.read.wall_ns, at_ns)
        if spent.probe is None:
            return
        if self._probed_ns is not None:
            self._probes_every_ns = min(max(at_ns - self._probed_ns, 1), REPROBE_NS)
        self._probed_ns = at_ns
        self._cpu.probe.add(spent.probe.cpu_ns, at_ns)
        self._wall.probe.add(spent.probe.wall_ns, at_ns)

    def set(self, stretch: int, why: str, at_ns: int) -> None:
        """Change the stretch, and keep why."""
        self.stretch, self.why, self.changed_ns = stretch, why, at_ns

    def cpu_share(self, stretch: int) -> float:
        """The share of a core that it would take at a stretch."""
        return self._cpu.share(self.source.period_ns * stretch, self._probes_every_ns)

    def wall_share(self, stretch: int) -> float:
        """The share of its thread's time that it would take at a stretch."""
        return self._wall.share(self.source.period_ns * stretch, self._probes_every_ns)


Share = Callable[[Load, int], float]


def fit(loads: Sequence[Load], share: Share, allowance: float) -> dict[str, int]:
    """The stretches above 1 by which all shares fit into an allowance, as far as they can.

    A smaller allowance only goes further on the same way: no source is stretched less for it.
    """
    stretches: dict[str, int] = {}
    shares = {load.source.name: share(load, 1) for load in loads}
    fair = allowance / max(len(loads), 1)
    while sum(shares.values()) > allowance:
        able = [
            load
            for load in loads
            if stretches.get(load.source.name, 1) < load.most and shares[load.source.name] > fair
        ]
        if not able:
            break
        dearest = max(able, key=lambda load: shares[load.source.name])
        name = dearest.source.name
        stretches[name] = 2 * stretches.get(name, 1)
        shares[name] = share(dearest, stretches[name])
    return stretches


@dataclass(slots=True)
class _Account:
    """What the process used: reads by themselves, and the rest."""

    rest: Trend = field(default_factory=Trend)
    reads_ns: int = 0
    _marks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOWS_OF_USE + 1))

    @property
    def use(self) -> float | None:
        """The share of a core over the last minute; None before the first window is over."""
        if len(self._marks) < 2:  # noqa: PLR2004 - two ends of a stretch of time
            return None
        (began_ns, used_then), (ended_ns, used_now) = self._marks[0], self._marks[-1]
        return (used_now - used_then) / (ended_ns - began_ns)

    def take(self, process_cpu_ns: int, at_ns: int) -> None:
        """Take the process' total."""
        if self._marks:
            began_ns, used_then = self._marks[-1]
            if at_ns - began_ns < WINDOW_NS:
                return
            rest_ns = max(process_cpu_ns - used_then - self.reads_ns, 0)
            self.rest.add(rest_ns / (at_ns - began_ns), at_ns)
        self._marks.append((at_ns, process_cpu_ns))
        self.reads_ns = 0


class Governor:
    """Gives every source its stretch. A `cpu_ratio` of 0 bounds nothing; use is measured still."""

    def __init__(
        self, cpu_ratio: float, sources: Iterable[Governed], settled_after: int = SETTLED_AFTER
    ) -> None:
        self.cpu_ratio = cpu_ratio
        self.state = WITHIN
        self.loads: Mapping[str, Load] = {
            source.name: Load(source, settled_after) for source in sources
        }
        families = dict.fromkeys(load.source.family for load in self.loads.values())
        self._threads = [
            [load for load in self.loads.values() if load.source.family == family]
            for family in families
        ]
        self._account = _Account()
        self._decide_from_ns = 0

    @property
    def use(self) -> float | None:
        """The share of a core that the process took over the last minute; None at the start."""
        return self._account.use

    @property
    def rest(self) -> float:
        """The share of a core that goes to all but reading, which no period changes."""
        return self._account.rest.settled

    @property
    def projected(self) -> float:
        """The share of a core that is to be expected at the present periods."""
        return self.rest + sum(load.cpu_share(load.stretch) for load in self.loads.values())

    def took(self, name: str, spent: Spent, at_ns: int) -> None:
        """A source was read."""
        self._account.reads_ns += spent.total.cpu_ns
        self.loads[name].take(spent, at_ns)

    def absent(self, name: str) -> None:
        """A source is not on this machine: what looking for it costs belongs to the rest."""
        self.loads[name].forget()

    def decide(self, process_cpu_ns: int, at_ns: int) -> None:
        """Set all stretches anew, given the processor time of the process so far."""
        self._account.take(process_cpu_ns, at_ns)
        if not self.cpu_ratio or at_ns < self._decide_from_ns:
            return
        self._decide_from_ns = at_ns + DECIDE_NS
        relaxed = self._wanted(RELAXED)
        # Whatever fits into a part of the budget fits into all of it.
        needed = self._wanted(1.0) if relaxed else relaxed
        for name, load in self.loads.items():
            least, why = needed.get(name, (1, ROOM))
            most, _ = relaxed.get(name, (1, ROOM))
            if load.stretch < least:
                load.set(least, why, at_ns)
            elif load.stretch > most and at_ns - load.changed_ns >= HOLD_NS:
                load.set(most, ROOM, at_ns)
        self.state = self._graded()

    def _wanted(self, part: float) -> dict[str, tuple[int, str]]:
        """The stretches that a part of what is allowed asks for, and why."""
        loads = list(self.loads.values())
        for_reads = max(part * self.cpu_ratio - self.rest, part * SOURCES_SHARE * self.cpu_ratio)
        cpu = fit(loads, Load.cpu_share, for_reads)
        wanted = {name: (stretch, CPU) for name, stretch in cpu.items()}
        for thread in self._threads:
            for name, stretch in fit(thread, Load.wall_share, part * THREAD_SHARE).items():
                if stretch > cpu.get(name, 1):
                    wanted[name] = (stretch, BLOCKING)
        return wanted

    def _graded(self) -> int:
        if self.projected > self.cpu_ratio:
            return AT_LIMIT
        stretched = any(load.stretch > 1 for load in self.loads.values())
        return STRETCHING if stretched else WITHIN
