"""Dumps of a node whose job hangs: owner, age, place of the late rank, events, and unknown ranks."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.cases import capture_of
from support.flight_recorders import DIRECTORY, SAME_TIME_NS, STEP_NS, USER, dump, entry, pickled
from support.sampling import COLLECTIVE_SOURCES, read_sources

from railscope.capture import Capture, CaptureMoment
from railscope.catalog import collectives as c
from railscope.frame import Event, Frame
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives import flight_recorder as recorder
from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.commands.capture_walk import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.host.job_files import OpenedDump, RankProcess
from railscope_agent.host.recorded_calls import call_key
from railscope_agent.service import Agent, is_shipped
from railscope_agent.sources import flight_recorder, rank_places

CAPTURE = capture_of("nccl-hang")
CALLS = CAPTURE.moments[0].calls
LIST = f"job_files.list({DIRECTORY})"
FILES = CALLS[LIST]["files"]
JOB = FILES[0]["job"]
END_NS = CAPTURE.about.duration_ns
PIDS = [int(key[18:-1]) for key in CALLS if key.startswith("job_files.process(")]


def file_key(rank: int) -> str:
    return call_key("job_files", "flight_recorder", (DIRECTORY, JOB, f"nccl_trace_rank_{rank}"))


class Node:
    """The node of the capture with changed answers, read by an agent from begin to end."""

    def __init__(
        self, *later: dict[str, Any], late: float = 60.0, changes: dict[str, Any] | None = None
    ) -> None:
        calls = copy.deepcopy(CALLS) | (changes or {})
        first = msgspec.structs.replace(CAPTURE.moments[0], calls=calls)
        step_ns = END_NS // (len(later) + 1)
        moments = [CaptureMoment((n + 1) * step_ns, calls=change) for n, change in enumerate(later)]
        walk = CaptureWalk(Capture(CAPTURE.about, (first, *moments)))
        settings = AgentSettings(collectives=CollectiveSettings(late_seconds=late))
        agent = Agent(settings, walk.host, CAPTURE.about.node)
        self.frames: list[Frame] = []
        agent.on_frame = self.frames.append
        read_sources(walk, agent, COLLECTIVE_SOURCES)

    def last(self, name: str) -> Frame:
        return [frame for frame in self.frames if frame.schema.stream == name][-1]

    @property
    def files(self) -> dict[str, int]:
        """Files by state, those of none left out."""
        return self._by_state(c.FLIGHT_RECORDER_FILES)

    @property
    def ranks(self) -> dict[str, int]:
        """Ranks by state, those of none left out."""
        return self._by_state(c.COLLECTIVE_RANKS)

    def _by_state(self, wanted: Any) -> dict[str, int]:
        readings = self.last("flight_recorder").readings()
        counts = {e.key[0]: number for metric, e, number in readings if metric is wanted}
        assert not any(isinstance(number, Absent) for number in counts.values())
        return {state: int(number) for state, number in counts.items() if number}  # type: ignore[arg-type]

    @property
    def events(self) -> list[Event]:
        return [
            event
            for f in self.frames
            if is_shipped(f)
            for event in f.events
            if event.event_class.name.startswith("collective")
        ]

    def states(self) -> dict[str, str]:
        frame = self.last("collective_rank")
        return {
            entity.key[3]: c.RANK_STATES[int(value)]  # type: ignore[arg-type]
            for metric, entity, value in frame.readings()
            if metric is c.RANK_STATE
        }


def listing(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the list of files with a change to the first."""
    files = copy.deepcopy(FILES)
    change(files[0])
    return {LIST: {"files": files, "is_complete": True}}


def test_one_event_has_the_late_rank_with_collective_stack_place_and_holder() -> None:
    (event,) = Node().events
    assert event.event_class is c.LATE_EVENT
    assert event.entity.key == (JOB, str(USER), "0", "2")
    facts = event.facts
    assert (facts["collective"], facts["sequence"], facts["shapes"], facts["types"]) == (
        "all_reduce", "5000", "[25165824]", "BFloat16",
    )  # fmt: skip
    assert facts["stack"].endswith("/opt/model/train.py:118 training_step")
    assert (facts["waiting_ranks"], facts["waited_seconds"]) == ("0-1 3", "600")
    assert (facts["last_collective"], facts["last_sequence"]) == ("all_reduce", "4999")
    assert (facts["pid"], facts["rail"], facts["gpu_index"]) == (str(PIDS[2]), "2", "2")
    assert (facts["interface"], facts["rdma_device"]) == ("ens3f0np0", "mlx5_4")
    assert (facts["source"], facts["workload"], facts["owner"]) == ("slurm", JOB, "research")
    assert set(facts) <= set(c.LATE_EVENT.facts)


def test_ranks_are_not_sent_to_the_collector_but_their_numbers_are() -> None:
    node = Node()
    shipped = {frame.schema.stream for frame in node.frames if is_shipped(frame)}
    assert "flight_recorder" in shipped
    assert "collective_rank" not in shipped
    assert node.states() == {"0": "waiting", "1": "waiting", "2": "late", "3": "waiting"}


def test_a_dump_of_a_user_without_a_process_on_a_gpu_is_not_read() -> None:
    node = Node(
        changes=listing(lambda file: file.update(user=USER + 1))
        | {file_key(0): {"error": ["os", 5]}}
    )
    assert node.files == {"read": 3, "owner": 1}
    assert node.states() == {"0": "unknown", "1": "waiting", "2": "late", "3": "waiting"}


def test_a_dump_whose_owner_changed_between_list_and_open_does_not_count() -> None:
    opened = CALLS[file_key(0)] | {"user": USER + 1}
    assert Node(changes={file_key(0): opened}).files == {"read": 3, "owner": 1}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"modified_ns": CAPTURE.about.started_wall_ns - 4000 * SECOND_NS}, "outdated"),
        ({"modified_ns": CAPTURE.about.started_wall_ns + 4000 * SECOND_NS}, "outdated"),
        ({"is_regular": False}, "irregular"),
        ({"bytes": 1 << 40}, "too_large"),
    ],
)
def test_a_rank_whose_dump_is_not_usable_is_unknown(change: dict[str, Any], state: str) -> None:
    node = Node(changes=listing(lambda file: file.update(change)))
    assert node.files == {"read": 3, state: 1}
    assert node.states()["0"] == "unknown"


@pytest.mark.parametrize(
    ("number", "state"),
    [(74, "malformed"), (27, "too_large"), (40, "irregular"), (13, "unreadable")],
)
def test_a_dump_that_cannot_be_read_is_counted_with_its_reason(number: int, state: str) -> None:
    node = Node(changes={file_key(2): {"error": ["os", number]}})
    assert node.files == {"read": 3, state: 1}
    assert node.ranks == {"waiting": 3, "unknown": 1}
    (event,) = node.events
    assert event.event_class is c.WAIT_EVENT
    assert event.facts["waiting_ranks"] == "0-1 3"


def test_a_process_that_has_ended_still_owns_its_dump() -> None:
    lists: dict[str, Any] = {key: [] for key in CALLS if "RunningProcesses" in key}
    gone = {f"job_files.process({pid})": {"error": ["os", 2]} for pid in PIDS}
    node = Node(gone | lists)
    assert node.files == {"read": 4}
    assert node.last("collective_rank").schema.columns[0][1].facts["pid"] == str(PIDS[0])


def test_a_process_that_started_after_the_list_with_its_number_is_not_the_rank() -> None:
    key = f"job_files.process({PIDS[2]})"
    (event,) = Node(changes={key: CALLS[key] | {"started_ns": 1 << 62}}).events
    assert event.entity.key[3] == "2"
    assert "pid" not in event.facts


@pytest.mark.parametrize(
    ("other", "states"),
    [
        ("70000", dict.fromkeys("0123", "unknown")),
        (JOB, {"0": "waiting", "1": "waiting", "2": "late", "3": "waiting"}),
    ],
)
def test_ranks_in_a_directory_that_two_jobs_of_a_user_share_are_unknown(
    other: str, states: dict[str, str]
) -> None:
    files, flat = copy.deepcopy(FILES), {}
    for file in files:
        file["job"] = ""
        key = call_key("job_files", "flight_recorder", (DIRECTORY, "", file["name"]))
        flat[key] = CALLS[file_key(int(file["subject"]))]
    flat[LIST] = {"files": files, "is_complete": True}
    for pid in PIDS[2:]:
        process = CALLS[f"job_files.process({pid})"] | {"jobs": [other]}
        flat[f"job_files.process({pid})"] = process
    node = Node(changes=flat)
    assert node.states() == states
    assert bool(node.events) is ("late" in states.values())


@pytest.mark.parametrize(("other", "is_shared"), [("70000", True), (JOB, False)])
def test_claims_separate_jobs_that_share_a_directory_if_no_environment_can_be_read(
    other: str, *, is_shared: bool
) -> None:
    seen = {
        pid: rank_places.SeenProcess(
            RankProcess(USER), {"source": "slurm", "workload": workload}, SECOND_NS
        )
        for pid, workload in enumerate((JOB, other))
    }
    places = rank_places.RankPlaces(None, None, None, seen)  # type: ignore[arg-type]
    assert places.is_shared(("", USER)) is is_shared
    assert not places.is_shared((JOB, USER))


def test_an_event_is_reported_once_and_again_for_another_collective() -> None:
    written_ns = CAPTURE.about.started_wall_ns
    began_ns = written_ns - SAME_TIME_NS - 9000 * STEP_NS
    files, later = copy.deepcopy(FILES), {}
    for file in files:
        enqueued = 8999 if file["subject"] == "1" else 9000
        file["modified_ns"] = written_ns
        content = parse_dump(pickled(dump(range(4), enqueued, 8999, began_ns)))
        later[file_key(int(file["subject"]))] = msgspec.to_builtins(
            OpenedDump(USER, written_ns, content)
        )
    later[LIST] = {"files": files, "is_complete": True}
    node = Node({}, later, {})
    assert [(event.entity.key[3], event.facts["sequence"]) for event in node.events] == [
        ("2", "5000"),
        ("1", "9000"),
    ]


def test_a_late_rank_that_waits_in_another_group_names_it() -> None:
    written_ns = FILES[0]["modified_ns"]
    began_ns = written_ns - SAME_TIME_NS
    pair = entry(
        7, began_ns, is_completed=False, pg_id=1, process_group=("5", "tensor_parallel_1"),
        profiling_name="nccl:_all_gather_base",
    )  # fmt: skip
    content = dump(range(4), 4999, 4999, began_ns - 5000 * STEP_NS)
    content["entries"].append(pair)
    opened = OpenedDump(USER, written_ns, parse_dump(pickled(content)))
    node = Node(changes={file_key(2): msgspec.to_builtins(opened)})
    late = next(event for event in node.events if event.event_class is c.LATE_EVENT)
    assert late.facts["waits_in"] == "_all_gather_base 7 of group 5"


def test_a_longer_limit_reports_nothing() -> None:
    node = Node(late=700.0)
    assert (node.ranks, node.events) == ({"running": 4}, [])


def test_dumps_beyond_the_bytes_of_one_read_are_read_next_time() -> None:
    files = copy.deepcopy(FILES)
    for file in files:
        file["bytes"] = flight_recorder.MAX_READ_BYTES // 2
    node = Node(changes={LIST: {"files": files, "is_complete": True}})
    first, *_, last = [f for f in node.frames if f.schema.stream == "flight_recorder"]
    states = [
        [number for m, _, number in f.readings() if m is c.FLIGHT_RECORDER_FILES][:2]
        for f in (first, last)
    ]
    assert states == [[2, 2], [4, 0]]


HOSTILE = "00-hostile"


def with_dumps_of(
    job: str, count: int, *, groups: int = 1, user: int = USER, **changes: Any
) -> dict[str, Any]:
    """Return the files of the node and newer dumps of another job, each with a wait in every group."""
    collective = recorder.RecordedCollective(5, "nccl:all_reduce", created_ns=1)
    group = recorder.RecordedGroup("0", enqueued=5, completed=4, collectives=[collective])
    dump = recorder.FlightRecorderDump(
        [msgspec.structs.replace(group, name=f"g{number}") for number in range(groups)]
    )
    files, calls = copy.deepcopy(FILES), dict[str, Any]()
    for rank in range(count):
        name, modified_ns = f"rank_{rank}", FILES[0]["modified_ns"] + SECOND_NS
        other = {"job": job, "name": name, "subject": str(rank), "user": user, "inode": 9000 + rank}
        files.append(FILES[0] | other | {"modified_ns": modified_ns} | changes)
        key = call_key("job_files", "flight_recorder", (DIRECTORY, job, name))
        calls[key] = msgspec.to_builtins(OpenedDump(user, modified_ns, dump))
    return calls | {LIST: {"files": files, "is_complete": True}}


def test_groups_of_one_job_do_not_hide_the_late_rank_of_another() -> None:
    node = Node(changes=with_dumps_of(HOSTILE, 5, groups=256))
    assert node.ranks == {"waiting": 1023, "late": 1}
    assert ("late", JOB) in {(e.event_class.name[11:], e.entity.key[0]) for e in node.events}


def test_number_of_dumps_of_one_job_does_not_hide_those_of_another() -> None:
    node = Node(changes=with_dumps_of(HOSTILE, flight_recorder.MAX_DUMPS))
    assert node.files == {"read": flight_recorder.MAX_DUMPS, "excess": 4}
    assert node.ranks["late"] == 1


def test_dump_that_fills_each_read_leaves_the_next_one_to_other_jobs() -> None:
    changes = with_dumps_of(HOSTILE, 1, bytes=flight_recorder.MAX_READ_BYTES)
    rewritten = []
    for number in range(3):
        files = copy.deepcopy(changes[LIST]["files"])
        files[-1]["modified_ns"] += number + 1
        rewritten.append({LIST: {"files": files, "is_complete": True}})
    node = Node(*rewritten, changes=changes)
    *_, fourth, _ = [f for f in node.frames if f.schema.stream == "flight_recorder"]
    assert next(n for m, _, n in fourth.readings() if m is c.FLIGHT_RECORDER_FILES) == 5


LARGE = recorder.RecordedGroup(
    "9",
    completed=1,
    collectives=[recorder.RecordedCollective(1, "nccl:x", stack=["f" * 10_000_000])],
)
"""A group without an incomplete collective whose memory is a third of the limit."""


def test_the_oldest_dumps_beyond_the_memory_of_all_are_dropped_and_counted() -> None:
    changes: dict[str, Any] = {}
    for rank in range(4):
        answer = copy.deepcopy(CALLS[file_key(rank)])
        answer["dump"]["groups"].append(msgspec.to_builtins(LARGE))
        changes[file_key(rank)] = answer
    node = Node({}, {}, changes=changes)
    assert node.files == {"read": 3, "excess": 1}
    assert node.states()["0"] == "unknown"
    assert [event.entity.key[3] for event in node.events] == ["2"]


TEXTS = {mebibytes: "x" * (mebibytes << 20) for mebibytes in (0, 1, 4, 15)}


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(TEXTS))), max_size=40))
def test_only_users_with_more_than_their_share_lose_dumps(added: list[tuple[int, int]]) -> None:
    memory = flight_recorder.DumpMemory()
    kept: dict[tuple[int | str, ...], int] = {}
    sizes: Counter[int] = Counter()
    for number, (user, mebibytes) in enumerate(added):
        collective = recorder.RecordedCollective(1, TEXTS[mebibytes])
        group = recorder.RecordedGroup("0", collectives=[collective])
        dump = recorder.FlightRecorderDump([group])
        kept[(user, number)] = dump.memory_bytes
        sizes[user] += dump.memory_bytes
        for dropped in memory.add(user, (user, number), dump):
            del kept[dropped]
    assert sum(kept.values()) <= flight_recorder.MAX_KEPT_BYTES
    lost = {user for number, (user, _) in enumerate(added) if (user, number) not in kept}
    assert all(sizes[user] > flight_recorder.MAX_KEPT_BYTES / len(sizes) for user in lost)


def test_a_node_without_the_directory_has_no_such_metrics() -> None:
    node = Node(changes={LIST: {"error": ["os", 2]}})
    assert "flight_recorder" not in {f.schema.stream for f in node.frames if f.schema.columns}


def test_the_directory_that_appears_later_is_found() -> None:
    calls: dict[str, Any] = {LIST: {"error": ["os", 2]}}
    node = Node({}, {LIST: CALLS[LIST]}, {}, changes=calls)
    assert node.files == {"read": 4}


def listed_on(gpus: range) -> dict[str, Any]:
    """Return process lists in which the process of rank 2 is on these GPUs."""
    lists = {key: answer for key, answer in CALLS.items() if "ComputeRunningProcesses" in key}
    listed = next(
        process for answer in lists.values() for process in answer if process["pid"] == PIDS[2]
    )
    return {
        key: [p for p in answer if p["pid"] != PIDS[2]] + [listed] * (int(key[-2]) in gpus)
        for key, answer in lists.items()
    }  # fmt: skip


def test_a_process_on_several_gpus_has_no_gpu() -> None:
    (event,) = Node(changes=listed_on(range(2))).events
    assert (event.facts["pid"], event.facts["owner"]) == (str(PIDS[2]), "research")
    assert not {"gpu", "gpu_index", "interface", "rail"} & event.facts.keys()
