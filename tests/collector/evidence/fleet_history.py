"""Histories of a few nodes with random events, for property tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from support.story import (
    DAY,
    SECOND,
    Envelopes,
    NodeReporter,
    claim_ended,
    claim_started,
    cut,
    gpus_of,
    host,
    ports_of,
)

from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.files import calendar_file, claims_file, retirements_file, tenants_file

LAST = 3600
LEVELS = ["scheduler", "scheduler", "node_plugin", "process", "administrator"]
SLOTS = ["0-840", "0-840", "0-420", "420-840", "120-360"]


class FleetHistory:
    """Frames of each node's runs, in order; and the administrators' files."""

    def __init__(self, runs: list[tuple[NodeReporter, list]], files: AdministratorInputs) -> None:
        self.runs, self.files = runs, files

    def __repr__(self) -> str:
        lines = [
            f"{r.node} {r.boot_id} skew {r.skew} uncertainty {r.uncertainty_ns}: "
            + " ".join(_shown(frame) for frame in frames)
            for r, frames in self.runs
        ]
        return "\n".join([*lines, repr(self.files)])[:20_000]

    def envelopes(self, sizes: list[int]) -> Envelopes:
        """The frames in envelopes of these sizes, in turn."""
        found: Envelopes = []
        for reporter, made in self.runs:
            at = turn = 0
            firsts = {frame.schema.stream: frame for frame in reversed(made)}
            # Each stream is known from its first frame on, however its frames travel.
            found += [reporter.record([frame]) for frame in firsts.values()]
            alone = {id(frame) for frame in firsts.values()}
            frames = [frame for frame in made if id(frame) not in alone]
            while at < len(frames):
                size = sizes[turn % len(sizes)]
                found.append(reporter.record(frames[at : at + size]))
                at += size
                turn += 1
        return found


def _shown(frame) -> str:
    second = (frame.timestamp.boot_ns - 5000 * 10**9) // 10**9
    reported = [(e.event_class.name, *e.entity.key, e.facts) for e in frame.events]
    return f"{frame.schema.stream}@{second}{reported or ''}"


seconds = st.integers(0, LAST)


@st.composite
def claim_events(draw, gpus, shift=0):
    """Claims that begin and perhaps end, reported somewhat later, or earlier; from a second on."""
    found: dict[int, list] = {}

    def soon(second: int) -> int:
        return shift + min(max(second + draw(st.integers(-300, 600)), 0), LAST)

    for number in range(draw(st.integers(0, 4))):
        gpu, name = draw(st.sampled_from(gpus)), f"claim-{draw(st.integers(0, 3))}-{number}"
        begin = draw(seconds)
        slots = draw(st.sampled_from(SLOTS))
        facts = {
            "level": draw(st.sampled_from(LEVELS)),
            "owner": draw(st.sampled_from(["ns1", "ns2"])),
            "tenant": draw(st.sampled_from(["", "", "red"])),
            "compute": slots,
            "memory": slots,
            "exclusive": draw(st.sampled_from(["true", "false"])),
            "system": draw(st.sampled_from(["false", "false", "true"])),
        }
        reported = claim_started(gpu, name, shift + begin, **facts)
        found.setdefault(soon(begin), []).append(reported)
        if draw(st.booleans()):
            last = begin + draw(st.integers(-10, 900))
            found.setdefault(soon(last), []).append(claim_ended(gpu, name, shift + last))
    return found


@st.composite
def visits(draw):
    """Seconds at which a stream reports: spans with gaps between."""
    found: list[int] = []
    at = draw(st.integers(0, 300))
    for _ in range(draw(st.integers(1, 3))):
        step, count = draw(st.sampled_from([5, 10, 30, 40])), draw(st.integers(1, 25))
        found += range(at, at + step * count, step)
        at = found[-1] + draw(st.sampled_from([20, 60, 400]))
    return found


@st.composite
def runs_of(draw, node, gpus, boots):
    """Reports of one node over its boots."""
    found = []
    for number in range(boots):
        reporter = NodeReporter(
            node,
            f"{node}-boot-{number}",
            f"run-{number}",
            booted_at=-5000 + 3000 * number,
            skew=draw(st.sampled_from([0, 0, 0, 10, 100])),
            uncertainty_ns=draw(st.sampled_from([None, 0, 1_000_000_000])),
        )
        shift = number * (LAST + 300)
        drawn = draw(claim_events(gpus, shift)).items()
        booted_ns = reporter.booted_at * SECOND
        events = {
            second: [replace(event, boot_ns=event.boot_ns - booted_ns) for event in reported]
            for second, reported in drawn
        }
        frames = []
        for schema in draw(st.sampled_from([(gpus_of(*gpus),), (gpus_of(*gpus), ports_of(2))])):
            times = sorted({s + shift for s in draw(visits())} | events.keys())
            frames += reporter.frames(schema, times, events=events)
            events = {}
        frames += reporter.frames(host(), [s + shift for s in draw(visits())])
        if draw(st.booleans()):
            for profiles in draw(
                st.lists(st.sampled_from([(), ("3g.40gb", "4g.40gb")]), max_size=2)
            ):
                frames += reporter.frames(cut(gpus[0], *profiles), [draw(seconds) + shift])
        found.append((reporter, sorted(frames, key=lambda f: f.timestamp.boot_ns)))
    return found


def _stamp(second: int) -> str:
    assert DAY == 20_700
    return f"2026-09-04T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


@st.composite
def spelled_files(draw):
    """Content of administrators' files, by the kind of the file."""
    spans = st.tuples(seconds, seconds).map(sorted).filter(lambda s: s[0] < s[1])
    spelled = spans.map(lambda s: (_stamp(s[0]), _stamp(s[1])))
    claims = ["tenant,holds,from,to"]
    tenants = ["tenant,source,owner,from,to"]
    calendar = []
    retired = ["gpu,from,to,reason"]
    for _ in range(draw(st.integers(0, 2))):
        begin, end = draw(spelled)
        holds = draw(st.sampled_from(["GPU-0", "n1", "n2"]))
        claims.append(f"{draw(st.sampled_from(['blue', 'green']))},{holds},{begin},{end}")
        begin, end = draw(spelled)
        tenants.append(f"violet,{draw(st.sampled_from(['*', 'slurm']))},ns1,{begin},{end}")
        begin, end = draw(spelled)
        kind = draw(st.sampled_from(["maintenance", "outage"]))
        calendar.append(f"[[{kind}]]\nholds = '{holds}'\nfrom = {begin}\nto = {end}\n")
        calendar.append(
            f"[[reservation]]\nname = 'r'\ntenant = 'grey'\nholds = '{holds}'\nfrom = {begin}\n"
        )
        if draw(st.booleans()):
            begin, end = draw(spelled)
            gpu = draw(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]))
            retired.append(f"{gpu},{begin},{draw(st.sampled_from([end, '']))},sent back")
    return {
        "claims": "\n".join(claims) + "\n",
        "tenants": "\n".join(tenants) + "\n",
        "calendar": "".join(calendar),
        "retired": "\n".join(retired) + "\n",
    }


def read(texts: dict[str, str]) -> AdministratorInputs:
    """Content of the file."""
    return AdministratorInputs(
        claims_file.parse_claims(texts["claims"]),
        tenants_file.parse_tenants(texts["tenants"]),
        calendar_file.parse_calendar(texts["calendar"]),
        retirements_file.parse_retirements(texts["retired"]),
    )


@st.composite
def fleet_histories(draw):
    """One or two nodes, each with a boot or two; a GPU may be in both."""
    runs = draw(runs_of("n1", ["GPU-0", "GPU-1"], draw(st.integers(1, 2))))
    if draw(st.booleans()):
        runs += draw(runs_of("n2", draw(st.sampled_from([["GPU-2"], ["GPU-0", "GPU-2"]])), 1))
    return FleetHistory(runs, read(draw(spelled_files())))
