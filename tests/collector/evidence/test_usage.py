"""Usage as text: what nodes report and administrators' files state, and the GPU time and ledger days that follow.

A time is seconds, or has units: 1d2h30m. Second 0 is a midnight.

    boot NODE NAME TIME           a boot of a node; without it, a node booted 5,000 seconds before second 0
    claim NODE GPU CLAIM TIME     reported with the first samples from `reported` on (TIME if missing); `-` is no device
    end NODE GPU CLAIM TIME       the end of a claim
    report NODE GPUS FROM-TO      samples, each 30 seconds; `step`, `sent`, `skew`, `limit` (of the token's authority),
                                  `energy` (OFFSET+RATE in millijoules per second), `suspect` (since when the collector's clock was);
                                  `host` or `ports` (of two rails) instead of GPUs, and `mig=PROFILES` of one GPU, are other streams
    receive                       envelopes up to here arrive; otherwise they do in the order of their sending
    file KIND ROW                 a row of an administrators' file, or of the calendar with `|` between lines; `@TIME` is a time
    show TIME                     time of each GPU up to there; the size of a part in brackets unless it is all
    energy TIME                   energy of each GPU up to there, in joules; `traffic TIME`: kilobytes of its rail
    held TIME                     tenants that hold each GPU then, by the reports in memory
    round TIME                    a round of the finalizer; prints new revisions of days, in hours
    restart                       with the last checkpoint; `restart empty`: without
    collector NAME                another collector of the same database

New problems are printed by `show` and `round`, new records for the audit log by `round`. Both check that all time of every GPU
is accounted for once, and `round` that days are the same when they are metered again, together and one by one.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import select
from support.finalizing import FinalizingCollector
from support.stories import Story
from support.story import (
    DAY,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    counting,
    cut,
    gpus_of,
    host,
    no_turns,
    ports_of,
)

from railscope.frame import Event, Schema
from railscope.timestamps import DAY_NS, HOUR_NS, format_timestamp
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.ledger_records import HEAD
from railscope_collector.metering.metered_day import DayPart, MeteredDay
from railscope_collector.metering.slot_state import SlotState

UNITS = {"d": 86_400, "h": 3600, "m": 60, "": 1}
HEADERS = {
    "claims": "tenant,holds,from,to", "tenants": "tenant,source,owner,from,to", "retired": "gpu,from,to,reason",
    "inventory": "node,gpus,rdma_ports,from,to", "calendar": "",
}  # fmt: skip


def seconds(text: str) -> int:
    sign, parts = (-1 if text.startswith("-") else 1), re.findall(r"(\d+)([dhm]?)", text)
    return sign * sum(int(number) * UNITS[unit] for number, unit in parts)


def shown(timestamp_ns: int) -> str:
    """Return a time of the story as it is written in it."""
    total = round(Fraction(timestamp_ns - at(0), SECOND))
    rest, words = abs(total), "-" * (total < 0)
    for unit, size in UNITS.items():
        number, rest = divmod(rest, size)
        words += f"{number}{unit}" if number else ""
    return words or "0"


def hours(units_ns: float) -> str:
    return f"{float(Fraction(units_ns) / 840 / HOUR_NS):.4f}".rstrip("0").rstrip(".") + " h"


def holder(part: DayPart) -> str:
    is_inferred = part.state is SlotState.INFERRED
    evidence = f"({part.node_evidence.name.lower()})" if is_inferred else ""
    return " ".join(filter(None, [f"{part.state.value}{evidence}", part.tenant]))


@dataclass
class Played:
    """Nodes, files and collectors of one story."""

    directory: Path
    nodes: dict[str, NodeReporter] = field(default_factory=dict)
    reported: dict[str, list[tuple[int, Event]]] = field(default_factory=dict)
    sent: Envelopes = field(default_factory=list)
    sites: dict[str, FinalizingCollector] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    revisions: dict[tuple[str, int], int] = field(default_factory=dict)
    recorded: int = 0

    def __post_init__(self) -> None:
        self.collector("one")

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word and name != "file")
        values = words if name == "file" else [word for word in words if "=" not in word]
        if name in {"show", "energy", "traffic", "held", "round", "restart", "collector"}:
            self.receive()
        return getattr(self, name)(*values, **options) or []

    # Frames and claims

    def boot(self, node: str, name: str, time: str) -> None:
        is_known = node in self.nodes
        self.nodes[node] = NodeReporter(node, name, name, seconds(time), is_known=is_known)

    def claim(
        self, node: str, gpu: str, name: str, time: str, reported: str = "", **facts: str
    ) -> None:
        for key in ("end_ns", "start_ns"):
            facts |= {key: str(at(seconds(facts[key])))} if facts.get(key, "soon") != "soon" else {}
        unclaimed = bool(facts.pop("unclaimed", ""))
        self.add_event(
            node,
            seconds(reported or time),
            claim_started(gpu.strip("-"), name, seconds(time), unclaimed=unclaimed, **facts),
        )

    def end(self, node: str, gpu: str, name: str, time: str, reported: str = "") -> None:
        self.add_event(
            node, seconds(reported or time), claim_ended(gpu.strip("-"), name, seconds(time))
        )

    def add_event(self, node: str, when: int, event: Event) -> None:
        self.reported.setdefault(node, []).append((when, event))

    def report(  # noqa: PLR0913 - options of the command
        self, node: str, gpus: str, span: str, *, step: str = "30", sent: str = "", skew: str = "", limit: str = "",
        energy: str = "", suspect: str = "", mig: str | None = None,
    ) -> None:  # fmt: skip
        first, last = map(seconds, re.fullmatch(r"(-?\w+)-(\w+)", span).groups())  # type: ignore[union-attr]
        one = self.nodes.setdefault(node, NodeReporter(node, f"{node}-boot"))
        one.skew = seconds(skew or "0")
        schema: Schema = (
            host() if gpus == "host"
            else ports_of(2) if gpus == "ports"
            else cut(gpus, *filter(None, mig.split(","))) if mig is not None
            else gpus_of(*gpus.split(","))
        )  # fmt: skip
        times, waiting = range(first, last + 1, int(step)), self.reported.setdefault(node, [])
        events = dict[int, list[Event]]()
        for when, event in sorted(waiting, key=lambda each: each[0]):
            if when <= times[-1]:
                second = next(each for each in times if each >= when)
                boot_ns = (second - one.booted_at) * SECOND
                events.setdefault(second, []).append(
                    Event(event.event_class, event.entity, at(second), boot_ns, event.facts)
                )
        waiting[:] = [each for each in waiting if each[0] > times[-1]]
        offset, rate = map(int, energy.split("+")) if energy else (0, 0)
        column = [i for i, (metric, _) in enumerate(schema.columns) if "energy" in metric.name]

        def values(second: int, columns: int) -> list[int]:
            if not energy:
                return counting(second, columns)
            return [offset + rate * second if i in column else 0 for i in range(columns)]

        if sent:
            frames = one.frames(schema, times, values=values, events=events)
            parts = [frames[i : i + 5000] for i in range(0, len(frames), 5000)]
            made = [one.record(part, seconds(sent) + i) for i, part in enumerate(parts)]
        else:
            made = one.envelopes_of(
                schema, times, values=values, events=events, each=600 // int(step)
            )
        facts = {"max_authority": int(limit)} if limit else {}
        facts |= {"doubted_since_ns": at(seconds(suspect)), "is_suspect": True} if suspect else {}
        self.sent += [(replace(record, **facts), found) for record, found in made]

    def receive(self) -> None:
        accept(self.site.core, sorted(self.sent, key=lambda each: each[0].received_wall_ns))
        self.sent.clear()

    def file(self, kind: str, *words: str) -> None:
        row = re.sub(
            r"@(-?\w+)", lambda time: format_timestamp(at(seconds(time[1]))), " ".join(words)
        )
        for site in self.sites.values():
            before = site.texts.get(kind, HEADERS[kind] + "\n")
            site.texts[kind] = (
                HEADERS[kind] + "\n" if row == "removed" else before + row.replace("|", "\n") + "\n"
            )

    # Collectors

    def collector(self, name: str) -> None:
        self.site = self.sites.get(name) or FinalizingCollector(
            self.directory / name, f"sqlite:///{self.directory / 'ledger.db'}"
        )
        if name not in self.sites:
            self.site.texts = dict(next(iter(self.sites.values())).texts) if self.sites else {}
            self.sites[name] = self.site
            self.listen()

    def restart(self, how: str = "") -> None:
        self.site.restart(self.site.checkpoint() if not how else None)
        self.listen()

    def listen(self) -> None:
        self.site.core.evidence.problems.listeners.append(
            lambda found: self.problems.append(
                " ".join(
                    filter(
                        None,
                        [
                            "problem",
                            found.kind,
                            found.gpu,
                            found.node,
                            *(f"{k}={v}" for k, v in found.facts.items()),
                        ],
                    )
                )
            )
        )

    def take_problems(self) -> list[str]:
        found, self.problems = self.problems, []
        return found

    # Usage and accounts

    def days_until(self, time: str) -> list[MeteredDay]:
        """Return all GPU-days up to a time, by what has arrived."""
        site = self.site
        site.now = seconds(time)
        asyncio.run(site.finalizer.store_all(everything=True))
        facts = UsageFacts(site.stores.facts, site.stores.files)
        first = DAY - 2
        return [
            day
            for number in range(first, at(seconds(time)) // DAY_NS + 1)
            for day in facts.meter(number)
        ]

    def show(self, time: str) -> list[str]:
        until, spans = at(seconds(time)), dict[str, list[list[str]]]()
        for day in self.days_until(time):
            of_gpu = spans.setdefault(day.gpu, [])
            for piece in day.pieces:
                if piece.start_ns >= until:
                    continue
                begin, end = shown(piece.start_ns), shown(min(piece.end_ns, until))
                for part in piece.parts:
                    what = holder(part)
                    if part.size != 840:
                        what = what.replace(part.state.value, f"{part.state.value}[{part.size}]", 1)
                    before = next((s for s in reversed(of_gpu) if s[0] == what), ["", "", ""])
                    if before[2] == begin:
                        before[2] = end
                    else:
                        of_gpu.append([what, begin, end])
        lines = [
            f"{gpu}: " + ", ".join(f"{begin}-{end} {what}" for what, begin, end in of_gpu)
            for gpu, of_gpu in sorted(spans.items())
        ]
        return lines + self.take_problems()

    def energy(self, time: str, measures: str = "energy", unit: str = "J") -> list[str]:
        found = dict[str, Counter[str]]()
        for day in self.days_until(time):
            of_gpu = found.setdefault(day.gpu, Counter[str]())
            for each in day.amounts:
                if each.amount and each.measure.value in measures:
                    of_gpu[f"{each.reason or 'attributed'} {each.tenant}".strip()] += each.amount
        return [
            f"{gpu}: "
            + ", ".join(
                f"{amount / 1000:g} {unit} {name}" for name, amount in sorted(of_gpu.items())
            )
            for gpu, of_gpu in sorted(found.items())
        ]

    def traffic(self, time: str) -> list[str]:
        return self.energy(time, "received transmitted", "kB")

    def held(self, time: str) -> list[str]:
        asyncio.run(self.site.live.refresh(at(seconds(time)), no_turns))
        gpus = sorted(self.site.core.evidence.places)
        return [f"{gpu}: {', '.join(sorted(self.site.live.holders(gpu)))}".strip() for gpu in gpus]

    def round(self, time: str) -> list[str]:
        for _ in range(2):  # the second one writes what the first has read
            asyncio.run(self.site.round(seconds(time), everything=True))
        assert asyncio.run(self.site.account(seconds(time))).balances
        ledger, lines = self.site.stores.ledger, list[str]()
        newest = ledger.newest(DAY - 40, DAY + 100)
        for key, number in sorted(newest.items()):
            (revision,) = ledger.revisions({key: number})
            self.check_day(revision.day)
            if self.revisions.get(key) == number:
                continue
            self.revisions[key] = number
            found = Counter[str]()
            for piece in revision.day.pieces:
                for part in piece.parts:
                    time_ns = piece.end_ns - piece.start_ns
                    found[holder(part)] += part.size * time_ns
            again = f" ({number})" if number > 1 else ""
            times = ", ".join(
                f"{hours(found[name])} {name}" for name in sorted(found) if found[name]
            )
            lines.append(f"{key[0]} day {key[1] - DAY}{again}: {times}")
        return lines + self.take_problems() + self.take_records()

    def check_day(self, day: MeteredDay) -> None:
        """Compare a day of the ledger with the same day metered again."""
        facts = UsageFacts(self.site.stores.facts, self.site.stores.files)
        (again,) = [each for each in facts.meter(day.day) if each.gpu == day.gpu]
        assert again == day

    def take_records(self) -> list[str]:
        with self.site.stores.ledger.database.transaction() as connection:
            query = select(outbox_rows).where(
                outbox_rows.c.type != HEAD, outbox_rows.c.number > self.recorded
            )
            rows = connection.execute(query.order_by(outbox_rows.c.number)).all()
        self.recorded = max((row.number for row in rows), default=self.recorded)
        found = [(row.type, json.loads(row.subject) | json.loads(row.data)) for row in rows]
        return [
            f"record {kind} "
            + " ".join(f"{k}={v}" for k, v in facts.items() if v and k not in {"sha256", "gpu_ns"})
            for kind, facts in found
        ]


@pytest.fixture
def played(tmp_path: Path, new_ledger_file: Path) -> Iterator[Played]:
    shutil.copyfile(new_ledger_file, tmp_path / "ledger.db")
    found = Played(tmp_path)
    yield found
    for site in found.sites.values():
        site.finalizer.close()


def test_usage(story: Story, played: Played) -> None:
    story.play(played.run)
