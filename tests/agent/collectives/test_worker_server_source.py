"""Workers whose flight recorders are requested: when, which of them, what is attributed to them, and bounds."""

from __future__ import annotations

import copy
import dataclasses
import errno
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs
from support.cases import capture_of
from support.flight_recorders import DIRECTORY, SAME_TIME_NS, STEP_NS, USER, dump, pickled
from support.sampling import COLLECTIVE_SOURCES, read_sources
from support.worker_servers import NCCL, SUMMARY, PytorchServer, http_answer

from railscope.capture import Capture, CaptureMoment
from railscope.catalog import collectives as c
from railscope.frame import Event, Frame
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives.flight_recorder import (
    RecordedCollective,
    RecordedGroup,
    parse_dump,
)
from railscope_agent.commands.capture_walk import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.host import HostWrapper, Json
from railscope_agent.host.job_files import JobFile, JobFileListing
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.recorded_calls import call_key
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.service import Agent
from railscope_agent.sources import worker_server
from railscope_agent.sources.worker_server import WorkerServer, parse_ports

HANG = capture_of("nccl-hang")
CALLS = HANG.moments[0].calls
PIDS = [int(key[18:-1]) for key in CALLS if key.startswith("job_files.process(")]
JOB = "60937"
MINUTE_NS = 61 * SECOND_NS
TIMEOUT_MS = 2000
BEGAN_NS = HANG.about.started_wall_ns - SAME_TIME_NS - 5000 * STEP_NS


def socket_file(rank: int, user: int = USER, job: str = JOB, kind: str = "rank") -> JobFile:
    name = f"{kind}_{rank}.sock"
    return JobFile(job, name, str(rank), user, 0, 0, 100 + rank, is_regular=False)


def listing(*files: JobFile) -> dict[str, Json]:
    content = msgspec.to_builtins(JobFileListing(list(files)))
    return {f"job_files.list_sockets({DIRECTORY})": content}


def key(function: str, rank: int, job: str = JOB, kind: str = "rank") -> str:
    arguments = (TIMEOUT_MS, DIRECTORY, job, f"{kind}_{rank}.sock")
    return call_key("worker_server", function, arguments)


def numbers(*enqueued: int, completed: int = 4999) -> dict[str, Json]:
    """Return the progress of the ranks."""
    return {
        key("progress", rank): {"progress": {"0": [number, completed]}}
        for rank, number in enumerate(enqueued)
    }


def dumps(*enqueued: int) -> dict[str, Json]:
    """Return the dumps of the ranks."""
    contents = [parse_dump(pickled(dump(range(4), number, 4999, BEGAN_NS))) for number in enqueued]
    return {
        key("dump", rank): {"dump": msgspec.to_builtins(content)}
        for rank, content in enumerate(contents)
    }


NO_FILES = {f"job_files.list({DIRECTORY})": {}}
SOCKETS = listing(*map(socket_file, range(4)))
HUNG = numbers(5000, 5000, 4999, 5000) | dumps(5000, 5000, 4999, 5000)


class AskedHost(HostWrapper):
    """A host that notes the requests to workers; those with `slow` in their name take 1.9 s."""

    def __init__(self, host: RecordedHost, asked: list[str]) -> None:
        super().__init__(host)
        self._asked = asked

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "worker_server":
            self._asked.append(f"{function} {arguments[-1]}")
            if "slow" in str(arguments[-1]):
                assert isinstance(self.clock, RecordedClock)
                self.clock.go_to(self.clock.offset_ns + 19 * SECOND_NS // 10)
        return self._host.call(host_interface, function, *arguments)

    def read(self, path: str) -> bytes:
        return self._host.read(path)

    def names(self, path: str) -> list[str]:
        return self._host.names(path)

    def resolve(self, path: str) -> str:
        return self._host.resolve(path)

    def open_file_group(self, paths: Any) -> Any:
        return self._host.open_file_group(paths)


class Node:
    """The node of a capture with worker servers, read by an agent once a minute."""

    def __init__(
        self, *moments: Mapping[str, Json], minutes: int = 3, first: Any = None, **changes: Any
    ) -> None:
        calls = copy.deepcopy(CALLS) | NO_FILES | SOCKETS | (first if first is not None else HUNG)
        later = [*moments, *({} for _ in range(minutes - len(moments)))]
        steps = [CaptureMoment((n + 1) * MINUTE_NS, calls=dict(m)) for n, m in enumerate(later)]
        about = dataclasses.replace(HANG.about, duration_ns=minutes * MINUTE_NS)
        start = msgspec.structs.replace(HANG.moments[0], calls=calls)
        walk = CaptureWalk(Capture(about, (start, *steps)))
        self.asked: list[str] = []
        settings = CollectiveSettings(**{"worker_servers": True} | changes)
        agent = Agent(
            AgentSettings(collectives=settings),
            AskedHost(walk.host, self.asked),
            about.node,
        )
        self.frames: list[Frame] = []
        agent.on_frame = self.frames.append
        with capture_logs() as logs:
            read_sources(walk, agent, COLLECTIVE_SOURCES)
        self.logs = [log for log in logs if log["event"].startswith("worker_server")]

    def _by_state(self, stream: str, wanted: Any) -> dict[str, int]:
        found = [frame for frame in self.frames if frame.schema.stream == stream][-1]
        counts = {e.key[0]: int(n) for m, e, n in found.readings() if m is wanted}  # type: ignore[arg-type]
        return {state: number for state, number in counts.items() if number}

    @property
    def servers(self) -> dict[str, int]:
        return self._by_state("worker_server", c.FLIGHT_RECORDER_SERVERS)

    @property
    def ranks(self) -> dict[str, int]:
        return self._by_state("flight_recorder", c.COLLECTIVE_RANKS)

    @property
    def events(self) -> list[Event]:
        found = (event for f in self.frames for event in f.events)
        return [event for event in found if event.event_class.name.startswith("collective_")]


def test_the_late_rank_of_a_job_that_stands_still_is_an_event() -> None:
    node = Node()
    (event,) = node.events
    assert event.event_class is c.LATE_EVENT
    assert event.entity.key == (JOB, str(USER), "0", "2")
    facts = event.facts
    assert (facts["collective"], facts["sequence"]) == ("all_reduce", "5000")
    assert (facts["waiting_ranks"], facts["waited_seconds"]) == ("0-1 3", "722")
    assert (facts["pid"], facts["rail"], facts["owner"]) == (str(PIDS[2]), "2", "research")
    assert node.ranks == {"late": 1, "waiting": 3}
    assert node.servers == {"answered": 4}
    assert node.logs == []


def test_a_worker_is_asked_after_a_minute_and_for_records_only_if_its_job_stands_still() -> None:
    once = [f"progress rank_{rank}.sock" for rank in range(4)]
    records = [f"dump rank_{rank}.sock" for rank in range(4)]
    assert Node(minutes=0).asked == []
    assert Node(minutes=0).servers == {"young": 4}
    assert Node(minutes=1).asked == once
    assert Node(minutes=2).asked == once + once + records


def test_a_job_that_advances_or_waits_for_nothing_is_never_asked_for_records() -> None:
    advancing = [numbers(*[5000 + step] * 4, completed=4999 + step) for step in range(5)]
    assert not [name for name in Node(*advancing, minutes=5).asked if name.startswith("dump")]
    idle = Node(first=numbers(*[5000] * 4, completed=5000), minutes=5)
    assert not [name for name in idle.asked if name.startswith("dump")]
    assert idle.ranks == {}


def test_a_job_of_which_a_group_hangs_while_another_advances_is_not_asked_for_records() -> None:
    def progress(step: int) -> dict[str, Json]:
        hung, other = {"0": [5000, 4999]}, {"1": [step, step - 1]}
        return {key("progress", rank): {"progress": hung} for rank in range(3)} | {
            key("progress", 3): {"progress": other}
        }

    node = Node(*(progress(step) for step in range(9, 12)), first=HUNG | progress(8), minutes=6)
    first = next(n for n, name in enumerate(node.asked) if name.startswith("dump"))
    assert first == 4 * 4, "after the first request that found no progress"


def test_dumps_are_forgotten_when_the_job_advances() -> None:
    node = Node({}, {}, numbers(*[5001] * 4, completed=5000), minutes=3)
    assert len(node.events) == 1
    assert node.ranks == {}


def test_nothing_is_asked_by_default() -> None:
    assert not CollectiveSettings().worker_servers
    node = Node(worker_servers=False)
    assert node.asked == []
    assert not [f for f in node.frames if f.schema.stream == "worker_server" and f.schema.columns]


def test_a_socket_of_a_user_without_a_process_on_a_gpu_is_not_connected_to() -> None:
    node = Node(first=HUNG | listing(*map(socket_file, range(3)), socket_file(3, USER + 1)))
    assert node.servers == {"answered": 3, "owner": 1}
    assert not [name for name in node.asked if "rank_3" in name]


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (errno.EACCES, "denied"),
        (errno.EPERM, "owner"),
        (errno.EINVAL, "irregular"),
        (errno.ECONNREFUSED, "unreachable"),
        (errno.EPROTO, "status"),
        (errno.ETIMEDOUT, "timeout"),
        (errno.EAGAIN, "timeout"),
        (errno.EMSGSIZE, "too_large"),
        (errno.EBADMSG, "malformed"),
    ],
)
def test_a_worker_that_fails_is_counted_and_logged_once_and_hides_no_other(
    number: int, state: str
) -> None:
    node = Node(first=HUNG | {key("progress", 3): {"error": ["os", number]}}, minutes=5)
    assert node.servers == {"answered": 3, state: 1}
    assert node.ranks == {"late": 1, "waiting": 2, "unknown": 1}
    (log,) = node.logs
    assert (log["event"], log["reason"]) == ("worker_server_failed", state)
    assert log["problem"]
    assert log["fix"]


def test_a_worker_that_answers_again_is_logged() -> None:
    failed = {key("progress", 3): {"error": ["os", errno.ETIMEDOUT]}}
    node = Node(failed, numbers(5000, 5000, 4999, 5000), minutes=4)
    assert [log["event"] for log in node.logs] == [
        "worker_server_failed",
        "worker_server_recovered",
    ]


def test_a_job_whose_workers_do_not_answer_takes_two_timeouts_and_they_come_last() -> None:
    silent = {key("progress", rank): {"error": ["os", errno.ETIMEDOUT]} for rank in range(3)}
    node = Node(first=HUNG | silent, minutes=2)
    first, second = node.asked[:2], node.asked[2:]
    assert first == ["progress rank_0.sock", "progress rank_1.sock"]
    assert second == ["progress rank_2.sock", "progress rank_3.sock", "progress rank_0.sock"]
    assert node.servers == {"timeout": 3, "answered": 1}


def test_the_number_of_servers_of_a_job_is_bounded() -> None:
    many = listing(*map(socket_file, range(worker_server.MAX_SERVERS_PER_JOB + 8)))
    node = Node(first=HUNG | many, minutes=1)
    assert len(node.asked) == worker_server.MAX_SERVERS_PER_JOB
    assert node.servers["excess"] == 8


@pytest.mark.parametrize("user", [USER, USER + 1])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_job_whose_workers_answer_slowly_leaves_time_for_others(
    user: int, *, is_renamed: bool
) -> None:
    """One whose sockets remain, and one with a new socket in each period."""
    of_user = {
        f"job_files.process({pid})": CALLS[f"job_files.process({pid})"] | {"user": user}
        for pid in PIDS[3:]
    }
    sockets = [*map(socket_file, range(3))]
    answer: Json = {"progress": {"0": [5000, 4999]}}
    moments: list[dict[str, Json]] = []
    for minute in range(6):
        ranks = [31 + minute * is_renamed, *range(31)]
        slow = [socket_file(rank, user, "slow", "slow") for rank in ranks]
        answers = {key("progress", rank, "slow", "slow"): answer for rank in ranks}
        moments.append(listing(*slow, *sockets) | answers)
    node = Node(*moments[1:], first=HUNG | of_user | moments[0], minutes=5)
    requests = Counter(node.asked)
    assert [requests[f"progress rank_{rank}.sock"] for rank in range(3)] == [5] * 3
    assert any("slow" in name for name in requests)


def test_sockets_of_ended_processes_are_asked_once_and_leave_places_for_others() -> None:
    ended = [
        (f"ended{number}", rank)
        for number in range(40)
        for rank in range(8)
    ]  # fmt: skip
    dead = [socket_file(rank, USER, job, "dead") for job, rank in ended]
    refused: dict[str, Json] = {
        key("progress", rank, job, "dead"): {"error": ["os", errno.ECONNREFUSED]}
        for job, rank in ended
    }
    node = Node(first=HUNG | refused | listing(*dead, *map(socket_file, range(4))), minutes=5)
    requests = Counter(node.asked)
    assert [requests[f"progress rank_{rank}.sock"] for rank in range(4)] == [5] * 4
    assert sum(number for name, number in requests.items() if "dead" in name) == len(ended)
    assert node.servers == {"answered": 4, "unreachable": len(ended)}


def server_of(user: int, job: int, number: int, *, has_answered: bool) -> WorkerServer:
    place = DIRECTORY, str(job), f"rank_{number}.sock"
    return WorkerServer((str(job), user), str(number), place, 0, has_answered=has_answered)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 20), st.booleans()),
        max_size=600,
    )
)
def test_users_share_the_places_and_servers_that_answered_come_first(
    found: list[tuple[int, int, int, bool]],
) -> None:
    servers = [
        server_of(user, job, number, has_answered=has_answered)
        for user, job, number, has_answered in found
    ]
    selected = worker_server.select_servers(servers)
    assert len(selected) <= worker_server.MAX_SERVERS
    of_job = Counter(server.job for server in selected)
    assert max(of_job.values(), default=0) <= worker_server.MAX_SERVERS_PER_JOB
    of_user = Counter(server.job[1] for server in selected)
    for user in {server.job[1] for server in servers}:
        jobs = Counter(server.job for server in servers if server.job[1] == user)
        eligible = sum(min(n, worker_server.MAX_SERVERS_PER_JOB) for n in jobs.values())
        assert of_user[user] >= min(eligible, worker_server.MAX_SERVERS // 4)


def test_new_servers_do_not_replace_those_that_have_answered() -> None:
    new = [server_of(1, job, n, has_answered=False) for job in range(40) for n in range(8)]
    running = [server_of(1, 99, n, has_answered=True) for n in range(8)]
    selected = worker_server.select_servers([*new, *running])
    assert sum(server.has_answered for server in selected) == len(running)


def test_the_last_dumps_beyond_the_memory_of_all_are_dropped_and_counted() -> None:
    collective = RecordedCollective(1, "nccl:x", stack=["f" * 10_000_000])
    large = msgspec.to_builtins(
        RecordedGroup("9", enqueued=1, completed=1, collectives=[collective])
    )
    answers = dumps(5000, 5000, 4999, 5000)
    for answer in answers.values():
        answer["dump"]["groups"].append(large)
    node = Node(first=HUNG | answers)
    assert node.servers == {"answered": 3, "excess": 1}
    assert node.ranks["unknown"] == 1


def served_ports() -> dict[str, Json]:
    """Return the calls of a node whose processes listen on ports 26000 to 26003 in place of sockets."""
    ports = {26000 + rank: pid for rank, pid in enumerate(PIDS)}
    found = call_key("worker_server", "listeners", (" ".join(map(str, ports)), *PIDS))
    answers: dict[str, Json] = {found: [list(pair) for pair in ports.items()]}
    for rank, (port, pid) in enumerate(ports.items()):
        for function in ("progress", "dump"):
            at = call_key("worker_server", function, (TIMEOUT_MS, port, pid, USER, 0))
            answers[at] = HUNG[key(function, rank)]
    gone: dict[str, Json] = {
        name: {"error": ["os", errno.ENOENT]} for name in (*NO_FILES, *SOCKETS)
    }
    return answers | gone


def test_a_port_is_that_of_the_rank_of_the_process_that_listens() -> None:
    node = Node(first=served_ports(), worker_ports="26000-26003")
    (event,) = node.events
    assert event.entity.key == (JOB, str(USER), "0", "2")
    assert event.facts["pid"] == str(PIDS[2])
    assert node.servers == {"answered": 4}


def test_a_process_that_is_no_longer_on_a_gpu_is_not_connected_to() -> None:
    lists: dict[str, Json] = {key: [] for key in CALLS if "RunningProcesses" in key}
    node = Node(lists, first=served_ports(), minutes=3, worker_ports="26000-26003")
    assert not [name for name in node.asked if name.startswith("progress")]
    assert node.servers == {}


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", []), ("26000", [26000]), ("1-3 2 65535", [1, 2, 3, 65535])],
)
def test_ports_are_single_ones_or_ranges(text: str, ports: list[int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize(
    "text", ["x", "0", "-1", "1-", "3-1", "65536", "1-65536", "1-100", "9" * 5000, "1,2", "\u0661"]
)
def test_other_ports_are_an_error_that_names_the_setting(text: str) -> None:
    with pytest.raises(SettingsError, match=r"invalid collectives\.worker_ports: .*expected"):
        parse_ports(text)


def test_ports_that_would_not_be_read_are_an_error() -> None:
    settings = AgentSettings(collectives=CollectiveSettings(worker_ports="26000"))
    with pytest.raises(SettingsError, match="expected worker_servers = true"):
        Agent(settings, CaptureWalk(HANG).host, HANG.about.node)


class SocketsOnNode(HostWrapper):
    """The node of the capture, whose job has sockets in a directory of this machine."""

    def __init__(self, host: RecordedHost, live: LiveHost, directory: Path) -> None:
        super().__init__(host)
        self._live, self._directory = live, str(directory)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "worker_server":
            timeout_ms, _, *place = arguments
            return self._live.call(host_interface, function, timeout_ms, self._directory, *place)
        return self._host.call(host_interface, function, *arguments)

    read, names, resolve = AskedHost.read, AskedHost.names, AskedHost.resolve
    open_file_group = AskedHost.open_file_group


def test_a_recording_of_real_servers_replays_what_the_agent_reported(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir()
    start = msgspec.structs.replace(
        HANG.moments[0], calls=copy.deepcopy(CALLS) | NO_FILES | SOCKETS
    )
    steps = [CaptureMoment(step * MINUTE_NS) for step in range(1, 4)]
    about = dataclasses.replace(HANG.about, duration_ns=3 * MINUTE_NS)
    walk = CaptureWalk(Capture(about, (start, *steps)))
    settings = AgentSettings(collectives=CollectiveSettings(worker_servers=True))

    def read(walked: CaptureWalk, host: Any) -> Counter[tuple[str, str, str]]:
        frames: list[Frame] = []
        agent = Agent(settings, host, about.node)
        agent.on_frame = frames.append
        read_sources(walked, agent, COLLECTIVE_SOURCES)
        return Counter(
            (event.event_class.name, event.entity.key[3], event.facts["sequence"])
            for found in frames
            for event in found.events
            if event.event_class.name.startswith("collective_")
        )

    contents = [msgspec.json.encode(dump(range(4), n, 4999, BEGAN_NS)) for n in (5000, 5000, 4999)]
    running = [
        PytorchServer(dict.fromkeys((NCCL, SUMMARY), http_answer(content))).running(
            tmp_path / JOB / f"rank_{rank}.sock"
        )
        for rank, content in enumerate(contents)
    ]
    with running[0], running[1], running[2]:
        live = LiveHost()
        recording = RecordingHost(SocketsOnNode(walk.host, live, tmp_path))  # type: ignore[arg-type]
        found = read(walk, recording)
        live.close()
    moments = sorted([*recording.moments, *steps], key=lambda moment: moment.offset_ns)
    replayed = CaptureWalk(Capture(about, tuple(moments)))
    assert read(replayed, replayed.host) == found == {("collective_late", "2", "5000"): 1}
