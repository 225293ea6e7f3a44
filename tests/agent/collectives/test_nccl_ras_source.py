"""Jobs that are queried through NCCL's RAS subsystem: when, by which node, what is attributed to them, events and ranks."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import ras_servers as ras
from support.cases import capture_of
from support.sampling import COLLECTIVE_SOURCES, read_sources

from railscope.capture import Capture, CaptureMoment
from railscope.catalog import collectives as c
from railscope.frame import Event, Frame
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import ras_answers, ras_report
from railscope_agent.commands.capture_walk import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.host import HostWrapper, Json
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nccl_ras import NcclProcess, RasAnswer
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.service import Agent, is_shipped
from railscope_agent.sources.nccl_ras import is_allowed

HANG = capture_of("nccl-hang")
PIDS = [int(key[18:-1]) for key in HANG.moments[0].calls if key.startswith("job_files.process(")]
OWN_PIDS: dict[str, Json] = {
    f"job_files.process({pid})": HANG.moments[0].calls[f"job_files.process({pid})"]
    | {"own_pid": 10 + index}
    for index, pid in enumerate(PIDS)
}
"""PIDs of the processes in their own namespace: 10 to 13."""
CALLS = {
    key: answer
    for key, answer in (HANG.moments[0].calls | OWN_PIDS).items()
    if not key.startswith("job_files.list(")
}
USER = 1000
JOB = "60937"
STEP_NS = 31 * SECOND_NS
AGED = NcclProcess("2.29.3", HANG.about.started_boot_ns - 900 * SECOND_NS, has_same_network=True)
RUNNING = [ras.rank(number, 10 + number, AllReduce=5000) for number in range(4)]
HUNG = [*RUNNING[:2], ras.rank(2, 12, AllReduce=4999), RUNNING[3]]


def ras_key(function: str, *pids: int, user: int = USER) -> str:
    return f"nccl_ras.{function}({','.join(map(str, (28028, 5000, user, *(pids or PIDS))))})"


QUERY, EVENTS = ras_key("query"), ras_key("events")


def processes(**changes: Any) -> dict[str, Json]:
    """Return the processes of the job, with changes to all."""
    process = msgspec.to_builtins(msgspec.structs.replace(AGED, **changes))
    return {f"nccl_ras.process({pid})": process for pid in PIDS}


def answer(*communicators: Any, pid: int = PIDS[0], content: bytes = b"") -> Json:
    """Return the answer of a process: communicators, or a text."""
    is_json = not content
    report = ras_answers.parse_report(content or ras.report(*communicators), is_json=is_json)
    return msgspec.to_builtins(RasAnswer("answered", pid, report))


def hung(*ranks: Any) -> dict[str, Json]:
    return {QUERY: answer(ras.communicator(ranks or HUNG))}


MONITORED: dict[str, Json] = {EVENTS: msgspec.to_builtins(RasAnswer("answered", PIDS[0]))}


class Node:
    """The node of a capture with answers of RAS, read by an agent every 31 s."""

    def __init__(
        self, *moments: Mapping[str, Json], mode: str = "query", first: Any = None, **changes: Any
    ) -> None:
        calls = copy.deepcopy(CALLS) | processes() | MONITORED | (first or {})
        start = msgspec.structs.replace(HANG.moments[0], calls=calls)
        later = [CaptureMoment((n + 1) * STEP_NS, calls=dict(m)) for n, m in enumerate(moments)]
        about = dataclasses.replace(HANG.about, duration_ns=len(moments) * STEP_NS)
        walk = CaptureWalk(Capture(about, (start, *later)))
        self.queried: list[str] = []
        settings = AgentSettings(collectives=CollectiveSettings(ras=mode, **changes))  # type: ignore[arg-type]
        agent = Agent(settings, ObservedHost(walk.host, self.queried), about.node)
        self.frames: list[Frame] = []
        agent.on_frame = self.frames.append
        read_sources(walk, agent, COLLECTIVE_SOURCES)

    def _counts(self, metric: Any) -> dict[str, int]:
        frame = [f for f in self.frames if f.schema.stream == "nccl_ras"][-1]
        return {
            entity.key[0]: int(value)  # type: ignore[arg-type]
            for found, entity, value in frame.readings()
            if found is metric and value
        }

    @property
    def processes(self) -> dict[str, int]:
        return self._counts(c.NCCL_PROCESSES)

    @property
    def ranks(self) -> dict[str, int]:
        return self._counts(c.NCCL_RANKS)

    @property
    def events(self) -> list[Event]:
        found = (event for f in self.frames if is_shipped(f) for event in f.events)
        return [event for event in found if event.event_class.name.startswith("nccl_")]

    def entities(self) -> dict[str, Any]:
        """Ranks on the metrics endpoint, by rank."""
        frame = [f for f in self.frames if f.schema.stream == "nccl_rank"][-1]
        return {e.key[3]: e for metric, e, _ in frame.readings() if metric is c.NCCL_STATE}

    def values(self, rank: str) -> list[Any]:
        frame = [f for f in self.frames if f.schema.stream == "nccl_rank"][-1]
        return [value for _, e, value in frame.readings() if e.key[3] == rank]


class ObservedHost(HostWrapper):
    """A host that notes the calls of RAS that connect to a job."""

    def __init__(self, host: RecordedHost, queried: list[str]) -> None:
        super().__init__(host)
        self._queried = queried

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "nccl_ras" and function != "process":
            self._queried.append(function)
        return self._host.call(host_interface, function, *arguments)

    def read(self, path: str) -> bytes:
        return self._host.read(path)

    def names(self, path: str) -> list[str]:
        return self._host.names(path)

    def resolve(self, path: str) -> str:
        return self._host.resolve(path)

    def open_file_group(self, paths: Any) -> Any:
        return self._host.open_file_group(paths)


def later(count: int, calls: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return moments of which the first has the calls."""
    return [calls, *({} for _ in range(count - 1))]


def test_the_late_rank_is_an_event_with_its_place_and_holder() -> None:
    (event,) = Node(*later(5, hung())).events
    assert event.event_class is c.NCCL_LATE_EVENT
    assert event.entity.key == (JOB, str(USER), "0xa1:0x7:0x9", "2")
    facts = event.facts
    assert (facts["collective"], facts["launched"], facts["lag"]) == ("AllReduce", "4999", "1")
    assert (facts["late_ranks"], facts["waiting_ranks"], facts["size"]) == ("2", "0-1 3", "4")
    assert (facts["waited_seconds"], facts["host"]) == ("62", ras.HOST)
    assert (facts["pid"], facts["gpu_index"], facts["rail"]) == (str(PIDS[2]), "2", "2")
    assert (facts["interface"], facts["rdma_device"]) == ("ens3f0np0", "mlx5_4")
    assert (facts["source"], facts["workload"], facts["owner"]) == ("slurm", JOB, "research")
    assert set(facts) <= set(c.NCCL_LATE_EVENT.facts)


def test_communicators_that_are_damaged_or_listed_twice_are_counted_and_the_others_compared() -> (
    None
):
    whole, damaged = ras.communicator(HUNG), ras.communicator([ras.rank(0, 1)] * 2, name="0xb2")
    node = Node(*later(5, {QUERY: answer(damaged, whole, whole)}))
    assert node.ranks == {"waiting": 3, "late": 1}
    frame = [f for f in node.frames if f.schema.stream == "nccl_ras"][-1]
    assert [value for metric, _, value in frame.readings() if metric is c.NCCL_DAMAGED] == [2]


def test_ranks_are_on_the_metrics_endpoint_and_their_numbers_in_frames() -> None:
    node = Node(*later(5, hung()))
    assert node.ranks == {"waiting": 3, "late": 1}
    assert node.processes == {"answered": 4}
    shipped = {frame.schema.stream for frame in node.frames if is_shipped(frame)}
    assert "nccl_ras" in shipped
    assert "nccl_rank" not in shipped
    assert node.values("2") == [c_state("late"), 4999, 1, 93 * SECOND_NS]
    assert node.entities()["1"].facts["pid"] == str(PIDS[1])


def c_state(name: str) -> int:
    return next(number for number, state in c.NCCL_RANK_STATES.items() if state == name)


def test_it_is_off_by_default() -> None:
    assert CollectiveSettings().ras == "off"
    node = Node(*later(5, hung()), mode="off")
    assert node.queried == []
    assert "nccl_ras" not in {f.schema.stream for f in node.frames if f.schema.columns}


def test_a_job_is_not_queried_in_its_first_minute_nor_in_that_of_the_agent() -> None:
    node = Node({}, hung())
    assert node.queried == ["events", "query"]  # the third read, after 62 s
    young = processes(started_ns=HANG.about.started_boot_ns + 10 * SECOND_NS)
    node = Node({}, {}, first=young)
    assert (node.queried, node.processes) == ([], {"young": 4})


def test_a_new_process_of_a_job_begins_its_first_minute_again() -> None:
    restarted = {
        f"nccl_ras.process({PIDS[3]})": msgspec.to_builtins(
            msgspec.structs.replace(AGED, started_ns=HANG.about.started_boot_ns + 80 * SECOND_NS)
        )
    }
    node = Node({}, hung(), restarted, {})
    assert node.queried == ["events", "query"]
    assert (node.processes, node.ranks) == ({"young": 4}, {})


def test_only_the_node_of_rank_0_queries() -> None:
    others: dict[str, Json] = {
        f"job_files.process({pid})": {"user": USER, "rank": 8 + index, "jobs": [JOB]}
        for index, pid in enumerate(PIDS)
    }
    node = Node({}, hung(), {}, first=others)
    assert (node.queried, node.processes, node.ranks) == ([], {"other_node": 4}, {})


def test_monitoring_gathers_nothing_from_the_other_ranks() -> None:
    node = Node({}, hung(), {}, mode="monitor")
    assert (node.queried, node.processes) == (["events", "events"], {"answered": 4})
    old = processes(version="2.28.9")
    node = Node({}, hung(), {}, mode="monitor", first=old)
    assert (node.queried, node.processes) == ([], {"version": 4})


def test_a_version_without_monitor_is_queried_only() -> None:
    node = Node({}, hung(), first=processes(version="2.28.9"))
    assert (node.queried, node.processes) == (["query"], {"answered": 4})


@pytest.mark.parametrize(
    ("version", "allowed", "expected"),
    [
        ("2.28.9", ["2.28", "2.29"], True),
        ("2.29.3", ["2.28", "2.29"], True),
        ("2.29.7", ["2.28", "2.29"], False),
        ("2.29.7", ["2.29.7"], True),
        ("2.30.1", ["2.28", "2.29"], False),
        ("2.2.1", ["2.28"], False),
        ("2.28.9", ["2.2"], False),
        ("2.27.3", ["2"], False),
        ("2.27.9", ["2.27"], True),
        ("2.26.2", ["2.26.2"], True),
        ("", ["2.28", ""], False),
    ],
)
def test_versions_are_allowed_by_their_numbers(
    version: str, allowed: list[str], *, expected: bool
) -> None:
    assert is_allowed(version, allowed) is expected


@pytest.mark.parametrize(
    ("first", "state"),
    [
        (processes(version=""), "version"),
        (processes(version="2.29.7"), "version"),
        (processes(has_same_network=False), "namespace"),
        ({f"nccl_ras.process({pid})": {"error": ["os", 13]} for pid in PIDS}, "denied"),
    ],
)
def test_processes_that_cannot_be_queried_are_counted_by_reason(first: Any, state: str) -> None:
    node = Node({}, hung(), {}, first=first)
    assert (node.queried, node.processes, node.ranks) == ([], {state: 4}, {})


def test_other_processes_on_gpus_are_not_counted() -> None:
    node = Node({}, {}, first={f"nccl_ras.process({pid})": None for pid in PIDS})
    assert node.processes == {}


@pytest.mark.parametrize("state", ["user", "timeout", "unreachable", "malformed", "too_large"])
def test_ranks_of_a_job_that_does_not_answer_are_unknown(state: str) -> None:
    failed: dict[str, Json] = {QUERY: {"state": state, "pid": PIDS[0]}}
    node = Node({}, hung(), failed)
    assert (node.processes, node.ranks) == ({state: 4}, {})
    node = Node({}, {EVENTS: {"state": state}}, {})
    assert (node.queried, node.processes) == (["events", "events"], {state: 4})


def test_a_job_that_makes_progress_has_no_late_rank() -> None:
    moments = []
    for step in range(6):
        ranks = [ras.rank(n, 10 + n, AllReduce=5000 + step - (n == 2)) for n in range(4)]
        moments.append({QUERY: answer(ras.communicator(ranks))})
    node = Node(*moments)
    assert (node.ranks, node.events) == ({"running": 4}, [])


def test_equal_counts_have_no_late_rank() -> None:
    node = Node(*later(8, hung(*RUNNING)))
    assert (node.ranks, node.events) == ({"running": 4}, [])


def test_late_ranks_are_those_that_launched_less_not_the_minority() -> None:
    ranks = [ras.rank(0, 10, AllReduce=51), *(ras.rank(n, 10 + n, AllReduce=50) for n in (1, 2, 3))]
    node = Node(*later(5, hung(*ranks)))
    assert node.ranks == {"waiting": 1, "late": 3}
    assert {event.facts["late_ranks"] for event in node.events} == {"1-3"}


def test_ranks_with_other_kinds_of_collectives_are_mismatched() -> None:
    ranks = [*RUNNING[:3], ras.rank(3, 13, AllReduce=4999, Broadcast=1)]
    node = Node(*later(5, hung(*ranks)))
    assert node.ranks == {"mismatched": 4}
    assert node.events[0].event_class is c.NCCL_MISMATCH_EVENT
    assert node.events[0].facts["collective"] == "AllReduce Broadcast"


def test_a_late_rank_that_waits_in_another_communicator_names_it() -> None:
    pair = ras.communicator(
        [ras.rank(0, 12, AllGather=8), ras.rank(1, 99, host="10.20.0.8", AllGather=7)], name="0xb2"
    )
    node = Node(*later(5, {QUERY: answer(ras.communicator(HUNG), pair)}))
    late = {event.entity.key[2:]: event.facts for event in node.events}
    assert late["0xa1:0x7:0x9", "2"]["waits_in"] == "AllGather of communicator 0xb2:0x7:0x9"
    remote = late["0xb2:0x7:0x9", "1"]
    assert "waits_in" not in remote
    assert ("pid" in remote, remote["host"]) == (False, "10.20.0.8")
    assert (remote["source"], remote["workload"], remote["owner"]) == ("slurm", JOB, "research")


def test_a_text_that_does_not_change_has_a_late_rank() -> None:
    lines = (
        "#0-0 (1f00ab23) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 64\n"
        f"  Rank 2 has launched up to operation 60 -- GPU 2 managed by process 12 on node {ras.HOST}\n"
    )
    old = processes(version="2.28.3")
    content = ras.text_report("MISMATCH", warnings=lines)
    node = Node(*later(5, {QUERY: answer(content=content)}), first=old)
    assert node.ranks == {"waiting": 7, "late": 1}
    (event,) = node.events
    assert (event.entity.key[3], event.facts["lag"], event.facts["waiting_ranks"]) == (
        "2", "4", "0-1 3-7",
    )  # fmt: skip


def test_missing_and_dead_ranks_are_events_once() -> None:
    absent = [ras.missing(2, 12), ras.missing(3, 13, is_dead=True)]
    node = Node(*later(5, {QUERY: answer(ras.communicator(RUNNING[:2], absent))}))
    assert node.ranks == {"running": 2, "missing": 1, "dead": 1}
    assert [(e.event_class.name, e.facts["pid"]) for e in node.events] == [
        ("nccl_rank_dead", str(PIDS[3])),
        ("nccl_rank_missing", str(PIDS[2])),
    ]


def test_a_rank_that_is_missing_once_has_no_event() -> None:
    absent = ras.communicator(RUNNING[:3], [ras.missing(3, 13)])
    node = Node({}, {QUERY: answer(absent)}, hung(*RUNNING), {})
    assert node.events == []


def test_a_failed_communicator_is_an_event_with_its_error() -> None:
    ranks = [*RUNNING[:3], ras.rank(3, 13, status={"async_error": 6})]
    (event,) = Node(*later(4, hung(*ranks))).events
    assert (event.event_class, event.facts["detail"]) == (c.NCCL_FAILED_EVENT, "async_error 6")


def test_a_process_that_the_monitor_reports_as_dead_is_an_event_once() -> None:
    dead = RasAnswer("answered", PIDS[0], dead=[ras_report.ReportedPeer(ras.HOST, 13)])
    node = Node(*hung_then(msgspec.to_builtins(dead)))
    (event,) = [e for e in node.events if e.event_class is c.NCCL_PEER_EVENT]
    assert event.entity.key == (JOB, str(USER))
    assert (event.facts["pid"], event.facts["gpu_index"]) == (str(PIDS[3]), "3")


def test_a_dead_rank_whose_process_has_ended_still_has_its_place() -> None:
    left = PIDS[:3]
    lists: dict[str, Json] = {
        key: [process for process in listed if process["pid"] in left]
        for key, listed in CALLS.items()
        if "RunningProcesses" in key
    }
    dead = ras.communicator(RUNNING[:3], [ras.missing(3, 13, is_dead=True)])
    changed = {ras_key("events", *left): MONITORED[EVENTS], ras_key("query", *left): answer(dead)}
    node = Node({}, hung(*RUNNING), lists | changed, {})
    assert node.processes == {"answered": 3}
    (event,) = node.events
    assert (event.event_class, event.facts["pid"]) == (c.NCCL_DEAD_EVENT, str(PIDS[3]))
    assert event.facts["gpu_index"] == "3"


def test_a_communicator_that_is_reported_twice_counts_once() -> None:
    twice = answer(ras.communicator(HUNG), ras.communicator(HUNG))
    node = Node({}, {QUERY: twice}, {}, {})
    assert node.ranks == {"waiting": 3, "late": 1}
    node = Node({}, {QUERY: twice}, {})
    assert node.ranks == {"running": 4}, "two reports"


def hung_then(events: Json) -> list[dict[str, Json]]:
    return [{}, hung(*RUNNING), {EVENTS: events}, {}, {}]


def test_a_report_about_processes_of_others_has_no_place_on_this_node() -> None:
    """A tenant claims that its job has a rank with the PID of another tenant's process."""
    other, user = PIDS[3], USER + 1
    changed: dict[str, Json] = {
        f"job_files.process({other})": {"user": user, "rank": 0, "jobs": [JOB], "own_pid": 13},
        ras_key("events", *PIDS[:3]): MONITORED[EVENTS],
        ras_key("query", *PIDS[:3]): answer(ras.communicator(RUNNING[:3], [ras.missing(3, 13)])),
        ras_key("events", other, user=user): {"state": "user"},
    }
    node = Node({}, {}, {}, {}, first=changed)
    assert node.processes == {"answered": 3, "user": 1}
    (event,) = node.events
    assert (event.entity.key[1], event.facts.get("pid")) == (str(USER), None)
    assert node.entities()["3"].key[:2] == (JOB, str(USER))


def test_many_late_ranks_are_a_bounded_number_of_events_and_series() -> None:
    ranks = [ras.rank(0, 10, AllReduce=2)]
    ranks += [ras.rank(n, -1, host="10.20.1.1", AllReduce=1) for n in range(1, 1500)]
    node = Node(*later(5, hung(*ranks)))
    assert node.ranks == {"waiting": 1, "late": 1499}
    assert len(node.events) == 8
    assert len(node.entities()) == 1024


def test_events_and_series_of_one_job_do_not_displace_those_of_another() -> None:
    """A job with 1,500 dead ranks is queried before one with a single one."""
    hostile, own = PIDS[:1], PIDS[1:]
    absent = [ras.missing(n, -1, is_dead=True, host="10.20.1.1") for n in range(1, 1500)]
    single = ras.communicator(
        [ras.rank(1, 11), ras.rank(2, 12)], [ras.missing(0, 13, is_dead=True)]
    )
    ranks = {pid: {"user": USER, "rank": n, "jobs": [JOB]} for n, pid in enumerate(own)}
    changed: dict[str, Json] = {
        **{f"job_files.process({pid})": process for pid, process in ranks.items()},
        f"job_files.process({PIDS[0]})": {"user": USER - 1, "rank": 0, "jobs": ["1"]},
        ras_key("events", *hostile, user=USER - 1): MONITORED[EVENTS],
        ras_key("query", *hostile, user=USER - 1): answer(
            ras.communicator([ras.rank(0, 10)], absent)
        ),
        ras_key("events", *own): MONITORED[EVENTS],
        ras_key("query", *own): answer(single, pid=own[0]),
    }
    node = Node({}, {}, first=changed)
    users = Counter(event.entity.key[1] for event in node.events)
    assert users == {str(USER - 1): 63, str(USER): 1}
    shown = [f for f in node.frames if f.schema.stream == "nccl_rank"][-1].schema.columns
    assert {str(USER), str(USER - 1)} == {entity.key[1] for _, entity in shown}
    later_node = Node({}, {}, {}, {}, first=changed)
    assert len(later_node.events) == 3 * 64


def test_queries_end_before_the_period_does() -> None:
    """Two jobs that take all of their timeouts leave no time for a third in a period of 15 s."""

    class SlowHost(ObservedHost):
        def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
            answer = super().call(host_interface, function, *arguments)
            if host_interface == "nccl_ras" and function != "process":
                assert isinstance(self.clock, RecordedClock)
                self.clock.go_to(self.clock.offset_ns + 5 * SECOND_NS)
            return answer

    first: dict[str, Json] = processes(version="2.28.9")
    for index, pid in enumerate(PIDS):
        first[f"job_files.process({pid})"] = {"user": USER + index, "rank": 0, "jobs": [JOB]}
        first[ras_key("query", pid, user=USER + index)] = {"state": "timeout"}
    calls = copy.deepcopy(CALLS) | first
    moments = (
        msgspec.structs.replace(HANG.moments[0], calls=calls),
        CaptureMoment(100 * SECOND_NS),
    )
    about = dataclasses.replace(HANG.about, duration_ns=100 * SECOND_NS)
    walk = CaptureWalk(Capture(about, moments))
    queried: list[str] = []
    settings = msgspec.convert(
        {"collectives": {"ras": "query"}, "period_seconds": {"nccl_ras": 15.0}}, AgentSettings
    )
    agent = Agent(settings, SlowHost(walk.host, queried), about.node)
    frames: list[Frame] = []
    agent.on_frame = frames.append
    read_sources(walk, agent, COLLECTIVE_SOURCES)
    frame = [f for f in frames if f.schema.stream == "nccl_ras"][-1]
    states = {e.key[0]: v for m, e, v in frame.readings() if m is c.NCCL_PROCESSES and v}
    assert (queried, states) == (["query"], {"timeout": 1, "excess": 3})


class OneServer(HostWrapper):
    """The node of a capture whose RAS calls reach a real server of this process."""

    def __init__(self, host: RecordedHost, live: LiveHost, port: int) -> None:
        super().__init__(host)
        self._live, self._port = live, port

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface != "nccl_ras" or function == "process":
            return self._host.call(host_interface, function, *arguments)
        own = self._live.call("nccl_ras", function, self._port, 5000, os.geteuid(), os.getpid())
        return own | {"pid": PIDS[0]}

    read, names, resolve = ObservedHost.read, ObservedHost.names, ObservedHost.resolve
    open_file_group = ObservedHost.open_file_group


@pytest.mark.parametrize("redactor", [None, Redactor()])
def test_a_recording_replays_what_the_agent_reported(redactor: Redactor | None) -> None:
    first = msgspec.structs.replace(HANG.moments[0], calls=CALLS | processes())
    steps = [CaptureMoment(step * STEP_NS) for step in range(1, 6)]
    about = dataclasses.replace(HANG.about, duration_ns=5 * STEP_NS)
    walk = CaptureWalk(Capture(about, (first, *steps)))
    server = ras.RasServer(ras.report(ras.communicator(HUNG)))
    settings = AgentSettings(collectives=CollectiveSettings(ras="query"))

    def read(walked: CaptureWalk, host: Any) -> list[Frame]:
        frames: list[Frame] = []
        agent = Agent(settings, host, about.node)
        agent.on_frame = frames.append
        read_sources(walked, agent, COLLECTIVE_SOURCES)
        return frames

    with server.running():
        live = LiveHost(Path("/"))
        recording = RecordingHost(OneServer(walk.host, live, server.port), redactor)  # type: ignore[arg-type]
        frames = read(walk, recording)
        live.close()
    moments = sorted([*recording.moments, *steps], key=lambda moment: moment.offset_ns)
    replayed = CaptureWalk(Capture(about, tuple(moments)))
    again = read(replayed, replayed.host)

    def result(found: list[Frame]) -> list[tuple[str, Any]]:
        return [
            (event.event_class.name, [event.facts[n] for n in ("collective", "lag", "gpu_index")])
            for f in found
            for event in f.events
            if event.event_class.name.startswith("nccl_")
        ]

    assert result(again) == result(frames) == [("nccl_rank_late", ["AllReduce", "1", "2"])]
