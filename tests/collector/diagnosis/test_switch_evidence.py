"""Evidence of switches: pauses at both ends of a link, and the queue of a cause that hosts name as a leaf."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from support.arriving_frames import DELAY_NS, OFFSET_NS, STEP_NS, ArrivingFrames, write_frame_log
from support.mirrored_switches import PRIORITY, Amount, Amounts, MirroredSwitches
from support.once_per_run import once_per_run
from support.scenarios import UPLINK_DEGRADED

from railscope.catalog import switches as catalog
from railscope.catalog.declare import Metric
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.commands.diagnose import REPLAYED_METRICS, REPLAYED_SOURCES
from railscope_collector.diagnosis.incident_report import (
    IncidentDocument,
    LeafDocument,
    NicDocument,
)
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, ReceivedBatches
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.scenario import read_scenario

ONSET_SECONDS = 300
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def frames(frame_log: Path) -> ArrivingFrames:
    found = ArrivingFrames()
    found.read(frame_log)
    return found


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> ArrivingFrames:
    """Two pods, of which one has lost uplinks of rail 3."""

    def write(directory: Path) -> None:
        directory.mkdir()
        (directory / "scenario.toml").write_text(UPLINK_DEGRADED + "pods = [0]\n")
        write_cluster(read_scenario(directory / "scenario.toml"), directory / "captures")
        write_frame_log(directory / "captures", directory, REPLAYED_SOURCES, REPLAYED_METRICS)

    found = ArrivingFrames()
    found.read(once_per_run(tmp_path_factory, "pods", write))
    return found


def mirror(frames: ArrivingFrames) -> MirroredSwitches:
    envelopes = [envelope for _, envelope in frames.envelopes]
    return MirroredSwitches.beside(envelopes, frames.schemas, frames.start_ns, OFFSET_NS - DELAY_NS)


def diagnose(
    frames: ArrivingFrames,
    switches: MirroredSwitches,
    polls: Iterable[ReceivedBatches],
    directory: Path,
    seconds: int = 400,
) -> list[IncidentDocument]:
    """Diagnose recorded nodes with the polls of switches as they arrive; return all incidents."""
    arriving = sorted(polls, key=lambda each: each.received_ns)
    schemas = frames.schemas | switches.schemas
    engine = DiagnosisEngine(directory, schemas.__getitem__)
    engine.open(frames.start_ns)
    links = list(switches.links.values())
    for now_ns in range(frames.start_ns + STEP_NS, frames.start_ns + seconds * SECOND_NS, STEP_NS):
        arrived = frames.between(now_ns - STEP_NS, now_ns)
        arrived += [each for each in arriving if now_ns - STEP_NS <= each.received_ns < now_ns]
        engine.process(arrived, frames.jobs, now_ns, links)
    assert engine.failures == 0
    return [each.document for each in engine.table.incidents]


def evidence_of(document: IncidentDocument, prefix: str) -> list[tuple[str, str]]:
    return [
        (each.signal, each.device) for each in document.evidence if each.signal.startswith(prefix)
    ]


def end_ns(frames: ArrivingFrames, seconds: int = 400) -> int:
    return frames.start_ns + seconds * SECOND_NS


LEAVES = [f"leaf-{number}" for number in range(1, 9)]


@pytest.mark.parametrize("period", [10, 30])
def test_a_switch_that_receives_the_pauses_confirms_the_receiver(
    frames: ArrivingFrames, tmp_path: Path, period: int
) -> None:
    switches = mirror(frames)
    (alone,) = diagnose(frames, switches, (), tmp_path / "alone")
    polls = switches.polls(LEAVES, end_ns(frames), period)
    (document,) = diagnose(frames, switches, polls, tmp_path / "switches")
    assert document.incident_class == alone.incident_class == "slow_receiver"
    assert (document.cause, document.onset, document.detected) == (
        alone.cause,
        alone.onset,
        alone.detected,
    )
    assert evidence_of(document, "switch_") == [
        ("switch_pauses_received", "leaf-4 Ethernet1/2 priority 3")
    ]
    assert document.confidence > alone.confidence


def test_a_switch_that_receives_no_pauses_contradicts_the_receiver(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    switches = mirror(frames)
    switches.factor = 0.0
    polls = switches.polls(LEAVES, end_ns(frames), 10)
    documents = diagnose(frames, switches, polls, tmp_path)
    (receiver,) = (each for each in documents if each.incident_class == "slow_receiver")
    assert receiver.confidence == pytest.approx(0.8 * 0.6)
    (row,) = (each for each in receiver.evidence if each.signal == "switch_pauses_received")
    assert row.value == 0
    assert row.threshold is not None
    assert row.threshold > 1000


@pytest.mark.parametrize("change", ["another NIC", "a reset", "no switch", "a stale switch"])
def test_what_cannot_be_compared_is_unknown(
    frames: ArrivingFrames, tmp_path: Path, change: str
) -> None:
    """A port counts no pauses: with a link, counters or samples that do not last, nothing follows."""
    switches = mirror(frames)
    switches.factor = 0.0
    port = ("leaf-4", "Ethernet1/2")
    polls = list(switches.polls(LEAVES, end_ns(frames), 10))
    if change == "another NIC":
        del switches.links[port]
    elif change == "a reset":  # the counter falls every 50 s
        switches.amounts[catalog.PFC_RECEIVED, port, PRIORITY] = lambda seconds: int(
            50 - seconds % 50
        )
        polls = list(switches.polls(LEAVES, end_ns(frames), 10))
    elif change == "no switch":
        polls = [each for each in polls if each.node != "switch/leaf-4"]
    else:
        polls = [each for each in polls if each.received_ns < end_ns(frames, ONSET_SECONDS)]
    (document,) = diagnose(frames, switches, polls, tmp_path)
    assert document.incident_class == "slow_receiver"
    assert evidence_of(document, "switch_") == []


SPINES = ("spine-1", "spine-2", "spine-3", "spine-4")
Marks = dict[tuple[str, str], int]
"""Marked packets per second of uplinks from the fault on."""


def with_uplinks(
    frames: ArrivingFrames, marks: Marks, usual: Marks, spines: Sequence[str] = ()
) -> MirroredSwitches:
    """Return switches with four uplinks at each of two leaves, and spines that are read."""
    switches = mirror(frames)
    places = [
        ((leaf, f"Ethernet9/{number}"), (spine, f"Ethernet{leaf[5:]}"))
        for leaf in ("leaf-4", "leaf-12")
        for number, spine in enumerate(SPINES, 1)
    ]
    for uplink, downlink in places:
        switches.uplinks[uplink] = downlink[0]
        if downlink[0] in spines:
            switches.uplinks[downlink] = uplink[0]
    for port in switches.uplinks:

        def marked(seconds: float, port: tuple[str, str] = port) -> int:
            risen = max(seconds - ONSET_SECONDS, 0.0) * marks.get(port, 0)
            return int(seconds * usual.get(port, 0) + risen)

        switches.amounts[catalog.QUEUE_MARKED_PACKETS, port, PRIORITY] = marked
        switches.amounts[catalog.QUEUE_PACKETS, port, PRIORITY] = lambda seconds: int(1e6 * seconds)
    return switches


def leaf_of(document: IncidentDocument) -> tuple[str, list[str], object]:
    cause = document.cause
    assert isinstance(cause, LeafDocument)
    place = (cause.port_switch, cause.port, cause.queue) if cause.port else None
    return cause.switch, [each.switch for each in cause.alternatives], place


BOTH: tuple[str, list[str], object] = ("leaf-4", ["leaf-12"], None)
UPLINKS: dict[str, tuple[Marks, Marks, list[str], tuple[str, list[str], object]]] = {
    "an uplink of the second leaf": ({("leaf-12", "Ethernet9/2"): 900}, {}, ["leaf-4", "leaf-12"], ("leaf-12", [], ("leaf-12", "Ethernet9/2", "3"))),
    "an uplink of the first leaf": ({("leaf-4", "Ethernet9/1"): 900}, {}, ["leaf-4", "leaf-12"], ("leaf-4", [], ("leaf-4", "Ethernet9/1", "3"))),
    "a queue of a spine": ({("spine-2", "Ethernet12"): 900}, {}, ["leaf-4", "leaf-12", "spine-2"], ("leaf-12", [], ("spine-2", "Ethernet12", "3"))),
    "both ends of an uplink": ({("spine-2", "Ethernet12"): 900, ("leaf-12", "Ethernet9/2"): 400}, {}, ["leaf-4", "leaf-12", "spine-2"], ("leaf-12", [], ("leaf-12", "Ethernet9/2", "3"))),
    "two uplinks": ({("leaf-4", "Ethernet9/1"): 900, ("leaf-12", "Ethernet9/2"): 400}, {}, ["leaf-4", "leaf-12"], BOTH),
    "all uplinks alike": ({("leaf-4", f"Ethernet9/{n}"): 900 for n in range(1, 5)}, {}, ["leaf-4", "leaf-12"], BOTH),
    "an uplink that always marks": ({}, {("leaf-4", "Ethernet9/1"): 900}, ["leaf-4", "leaf-12"], BOTH),
    "a leaf that is not read": ({("leaf-12", "Ethernet9/2"): 900}, {}, ["leaf-12"], BOTH),
    "nothing": ({}, {}, ["leaf-4", "leaf-12"], BOTH),
}  # fmt: skip
"""Marks of uplinks from the fault on, and always; switches that are read; leaf, alternatives and queue of the cause."""


@pytest.mark.parametrize("name", UPLINKS)
def test_an_uplink_is_named_if_just_one_stands_out(
    pods: ArrivingFrames, tmp_path: Path, name: str
) -> None:
    marks, usual, read, expected = UPLINKS[name]
    switches = with_uplinks(pods, marks, usual, [each for each in read if each in SPINES])
    polls = switches.polls(read, end_ns(pods, 420), 10)
    (document,) = diagnose(pods, switches, polls, tmp_path, 420)
    assert document.incident_class == "uplink_congested"
    assert leaf_of(document) == expected
    named = [f"{expected[2][0]} {expected[2][1]} queue 3"] if isinstance(expected[2], tuple) else []
    assert [device for _, device in evidence_of(document, "queue_marks")] == named
    assert bool(document.limits) == (not named)


WHOLE_PORTS: dict[str, tuple[dict[Metric, dict[tuple[str, str], int]], tuple[object, ...]]] = {
    "depth of a queue": ({catalog.QUEUE_OCCUPANCY: {("leaf-12", "Ethernet9/2"): MEGABYTE}}, ("leaf-12", "Ethernet9/2", "3")),
    "a port that waits for another": (
        {
            catalog.PORT_MARKED_PACKETS: {("leaf-4", "Ethernet9/1"): 900},
            catalog.PFC_RECEIVED: {("leaf-4", "Ethernet9/1"): 900},
        },
        ("leaf-12", "Ethernet9/2", ""),
    ),
    "marks alone": ({}, ("leaf-12", "Ethernet9/2", "")),
}  # fmt: skip
"""Values of uplinks beside the marks of a whole port of the cause, and the queue of the cause."""


@pytest.mark.parametrize("name", WHOLE_PORTS)
def test_marks_of_a_whole_port_are_those_of_its_queues(
    pods: ArrivingFrames, tmp_path: Path, name: str
) -> None:
    """A switch counts marks by port, and depths and pauses by queue: a congested port is one cause."""
    rates, expected = WHOLE_PORTS[name]
    switches = with_uplinks(pods, {}, {})
    marks = {("leaf-12", "Ethernet9/2"): 900, **rates.get(catalog.PORT_MARKED_PACKETS, {})}
    for metric, of_ports in {**rates, catalog.PORT_MARKED_PACKETS: marks}.items():
        for port in switches.uplinks:
            number = "" if metric is catalog.PORT_MARKED_PACKETS else PRIORITY
            switches.amounts.pop((catalog.QUEUE_MARKED_PACKETS, port, PRIORITY), None)
            switches.amounts[metric, port, number] = partial(risen, of_ports.get(port, 0))
    polls = switches.polls(["leaf-4", "leaf-12"], end_ns(pods, 420), 10)
    (document,) = diagnose(pods, switches, polls, tmp_path, 420)
    assert document.incident_class == "uplink_congested"
    assert leaf_of(document) == ("leaf-12", [], expected)
    signals = {signal for signal, _ in evidence_of(document, "queue_")}
    is_deep = catalog.QUEUE_OCCUPANCY in rates
    assert signals == {"queue_marks", *(["queue_occupancy"] if is_deep else [])}


def risen(rate: float, seconds: float) -> int:
    """Value of a counter that increases from the fault on."""
    return int(rate * max(seconds - ONSET_SECONDS, 0.0))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 4))]
)
def test_the_order_and_delay_of_polls_change_neither_class_nor_cause(
    pods: ArrivingFrames, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    switches = with_uplinks(pods, {("leaf-12", "Ethernet9/2"): 900}, {})
    polls = [
        each._replace(received_ns=each.received_ns + draw.randrange(10 * SECOND_NS))
        for name in ("leaf-12", "leaf-4")
        for each in switches.polls([name], end_ns(pods, 410), 10, draw.uniform(0.0, 10.0))
    ]
    draw.shuffle(polls)
    (document,) = diagnose(pods, switches, polls, tmp_path, 420)
    assert document.incident_class == "uplink_congested"
    assert leaf_of(document) == ("leaf-12", [], ("leaf-12", "Ethernet9/2", "3"))


def of_class(documents: Iterable[IncidentDocument], name: str) -> list[IncidentDocument]:
    return [each for each in documents if each.incident_class == name]


def test_ends_that_count_otherwise_are_one_advice_for_each_switch(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    switches = mirror(frames)
    for number, rate in ((1, 500), (2, 1000)):
        port = ("leaf-2", f"Ethernet1/{number}")
        switches.amounts[catalog.PFC_RECEIVED, port, PRIORITY] = partial(counted, rate)
    polls = list(switches.polls(LEAVES, end_ns(frames, 290), 10))
    (advice,) = diagnose(frames, switches, polls, tmp_path, 290)
    assert (advice.incident_class, advice.severity) == ("pause_counts_differ", "info")
    assert leaf_of(advice) == ("leaf-2", [], None)
    assert advice.detail.startswith(
        "leaf-2 Ethernet1/2 priority 3 counts 60000 pause frames received, and gpu-node-2 ens2f0np0 1 to 1 sent, in 60 s; "
    )
    nics = [each for each in advice.victims if isinstance(each, NicDocument)]
    assert [each.node for each in nics] == ["gpu-node-1", "gpu-node-2"]


def counted(rate: float, seconds: float) -> int:
    """Value of a counter that increases at a constant rate."""
    return int(rate * seconds)


PORT = ("leaf-4", "Ethernet1/2")
"""Port of the NIC that pauses."""


def detected(port: tuple[str, str]) -> Amounts:
    return {(catalog.WATCHDOG_DETECTED, port, PRIORITY): lambda seconds: int(seconds > 350)}


@pytest.mark.parametrize(
    ("amounts", "storms"),
    [
        (detected(PORT), [("nic", "gpu-node-2")]),
        (detected(("leaf-4", "Ethernet1/1")), []),
        (detected(("leaf-4", "Ethernet9/1")), [("leaf", "leaf-4")]),
        (
            {(catalog.WATCHDOG_RESTORED, PORT, PRIORITY): lambda seconds: int(seconds > 350)},
            [("nic", "gpu-node-2")],
        ),
        (
            {
                (catalog.WATCHDOG_DETECTED, PORT, PRIORITY): lambda _: 7,
                (catalog.WATCHDOG_RESTORED, PORT, PRIORITY): lambda seconds: int(seconds > 350),
            },
            [],
        ),
        (
            {
                (catalog.WATCHDOG_DETECTED, PORT, PRIORITY): lambda _: Absent.UNSUPPORTED,
                (catalog.WATCHDOG_RESTORED, PORT, PRIORITY): lambda seconds: int(seconds > 350),
            },
            [("nic", "gpu-node-2")],
        ),
        ({(catalog.WATCHDOG_DETECTED, PORT, PRIORITY): lambda seconds: int(1e9 * seconds)}, []),
    ],
    ids=[
        "the NIC pauses",
        "the NIC does not pause",
        "no NIC",
        "ends only",
        "the end of an old storm",
        "no count of storms",
        "nonsense",
    ],
)
def test_a_watchdog_is_evidence_of_a_storm_at_its_link(
    frames: ArrivingFrames, tmp_path: Path, amounts: Amounts, storms: list[tuple[str, str]]
) -> None:
    switches = mirror(frames)
    switches.amounts |= amounts
    polls = switches.polls(["leaf-4"], end_ns(frames), 10)
    found = of_class(diagnose(frames, switches, polls, tmp_path), "pfc_storm")
    causes = [
        ("nic", each.cause.node)
        if isinstance(each.cause, NicDocument)
        else ("leaf", leaf_of(each)[0])
        for each in found
    ]
    assert causes == storms
    for each in found:
        assert evidence_of(each, "watchdog")


UPLINK = ("leaf-2", "Ethernet9/1")


def queue_amounts(**values: Amount) -> Amounts:
    """Return values of queue 3 of an uplink at 400 Gb/s, which sends a million packets per second."""
    metrics = {
        "marks": catalog.QUEUE_MARKED_PACKETS, "occupancy": catalog.QUEUE_OCCUPANCY,
        "pauses": catalog.PFC_SENT, "headroom": catalog.GROUP_HEADROOM_WATERMARK,
        "size": catalog.GROUP_HEADROOM, "drops": catalog.GROUP_DROPPED,
    }  # fmt: skip
    found: Amounts = {(metrics[name], UPLINK, PRIORITY): value for name, value in values.items()}
    found[catalog.QUEUE_PACKETS, UPLINK, PRIORITY] = partial(counted, 1e6)
    found[catalog.SPEED, UPLINK, ""] = lambda _: 400_000
    return found


def always(value: int) -> Amount:
    return lambda _: value


def later(before: int, after: int) -> Amount:
    """Return a value that changes after 150 seconds."""
    return lambda seconds: after if seconds > 150 else before


QUEUES: dict[str, tuple[Amounts, str, str]] = {
    "pauses and no marks": (queue_amounts(marks=always(0), pauses=partial(counted, 100)), "ecn_late", "leaf-2 sends 100 pause frames of priority 3 per second, and its queues mark 0 packets: the ECN thresholds are above the PFC threshold"),
    "pauses and more marks": (queue_amounts(marks=partial(counted, 5000), pauses=partial(counted, 100)), "", ""),
    "pauses and unknown marks": (queue_amounts(pauses=partial(counted, 100)), "", ""),
    "deep and no marks": (queue_amounts(marks=always(7), occupancy=always(9 * MEGABYTE)), "ecn_late", "leaf-2 Ethernet9/1 queue 3 has up to 9 MB in 100% of the samples, and marks 0.00% of its packets: the ECN thresholds are too high"),
    "deep with marks": (queue_amounts(marks=partial(counted, 5e5), occupancy=always(9 * MEGABYTE)), "", ""),
    "not deep": (queue_amounts(marks=always(7), occupancy=always(3 * MEGABYTE)), "", ""),
    "headroom is nearly used": (queue_amounts(headroom=always(95_000), size=always(100_000)), "headroom_low", "leaf-2 Ethernet9/1 priority group 3: 95000"),
    "headroom is left": (queue_amounts(headroom=always(80_000), size=always(100_000)), "", ""),
    "headroom of unknown size": (queue_amounts(headroom=always(95_000)), "", ""),
    "headroom is nearly used, as a share": (queue_amounts() | {(catalog.GROUP_HEADROOM_USED, UPLINK, PRIORITY): always(95)}, "headroom_low", "leaf-2 Ethernet9/1 priority group 3: 1"),
    "headroom is left, as a share": (queue_amounts() | {(catalog.GROUP_HEADROOM_USED, UPLINK, PRIORITY): always(85)}, "", ""),
    "a peak of headroom that has risen": (queue_amounts() | {(catalog.GROUP_HEADROOM_PEAK, UPLINK, PRIORITY): later(0, 95)}, "headroom_low", "leaf-2 Ethernet9/1 priority group 3: 1"),
    "a peak of headroom that has risen further": (queue_amounts() | {(catalog.GROUP_HEADROOM_PEAK, UPLINK, PRIORITY): later(95, 96)}, "headroom_low", "leaf-2 Ethernet9/1 priority group 3: 1"),
    "a low peak of headroom": (queue_amounts() | {(catalog.GROUP_HEADROOM_PEAK, UPLINK, PRIORITY): later(0, 85)}, "", ""),
    "a peak of headroom of long ago": (queue_amounts() | {(catalog.GROUP_HEADROOM_PEAK, UPLINK, PRIORITY): always(95)}, "", ""),
    "a peak of headroom that was cleared": (queue_amounts() | {(catalog.GROUP_HEADROOM_PEAK, UPLINK, PRIORITY): later(95, 91)}, "", ""),
    "drops of a port with full headroom": (queue_amounts(pauses=partial(counted, 1)) | {(catalog.PORT_NO_BUFFER_DROPPED, UPLINK, ""): partial(counted, 2), (catalog.GROUP_HEADROOM_OCCUPANCY, UPLINK, PRIORITY): always(9000)}, "headroom_low", "leaf-2 Ethernet9/1: 240"),
    "drops of a port that pauses": (queue_amounts(pauses=partial(counted, 1)) | {(catalog.PORT_NO_BUFFER_DROPPED, UPLINK, ""): partial(counted, 2), (catalog.GROUP_HEADROOM_OCCUPANCY, UPLINK, PRIORITY): always(0)}, "", ""),
    "drops of a port of which headroom is unknown": (queue_amounts(pauses=partial(counted, 1)) | {(catalog.PORT_NO_BUFFER_DROPPED, UPLINK, ""): partial(counted, 2)}, "", ""),
    "drops of a port that does not pause": (queue_amounts() | {(catalog.PORT_NO_BUFFER_DROPPED, UPLINK, ""): partial(counted, 2)}, "", ""),
    "pauses and no marks of the whole port": (queue_amounts(pauses=partial(counted, 100)) | {(catalog.PORT_MARKED_PACKETS, UPLINK, ""): always(0)}, "ecn_late", "leaf-2 sends 100 pause frames of priority 3 per second, and its queues mark 0 packets: the ECN thresholds are above the PFC threshold"),
    "drops of a lossless group": (queue_amounts(drops=partial(counted, 2), pauses=partial(counted, 1)), "headroom_low", "leaf-2 Ethernet9/1 priority group 3: 240"),
    "drops of a lossy group": (queue_amounts(drops=partial(counted, 2)), "", ""),
}  # fmt: skip
"""Values of a queue; class of the only advice, or none, and its detail, or without one its evidence."""


@pytest.mark.parametrize("name", QUEUES)
def test_advice_follows_from_depth_marks_and_pauses_of_the_same_queue(
    frames: ArrivingFrames, tmp_path: Path, name: str
) -> None:
    amounts, advice, detail = QUEUES[name]
    switches = mirror(frames)
    switches.factor = 0.0
    switches.amounts |= amounts
    polls = switches.polls(["leaf-2"], end_ns(frames, 290), 10)
    found = diagnose(frames, switches, polls, tmp_path, 290)
    stated = [
        each.detail or f"{each.evidence[0].device}: {each.evidence[0].value:.0f}" for each in found
    ]
    assert list(zip((each.incident_class for each in found), stated, strict=True)) == (
        [(advice, detail)] if advice else []
    )
    for each in found:
        assert leaf_of(each)[0] == "leaf-2"
        assert each.gain is not None


@pytest.mark.parametrize("seed", range(2))
def test_nonsense_of_a_switch_makes_no_node_the_cause(
    frames: ArrivingFrames, tmp_path: Path, seed: int
) -> None:
    """Huge, falling and random values of all quantities, and a link to the NIC of another leaf."""
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    switches = mirror(frames)
    metrics = (
        catalog.PFC_RECEIVED, catalog.PFC_SENT, catalog.QUEUE_PACKETS, catalog.QUEUE_MARKED_PACKETS,
        catalog.QUEUE_DROPPED_PACKETS, catalog.QUEUE_OCCUPANCY, catalog.QUEUE_WATERMARK, catalog.WATCHDOG_DETECTED,
        catalog.GROUP_HEADROOM_WATERMARK, catalog.GROUP_HEADROOM, catalog.GROUP_DROPPED,
    )  # fmt: skip
    for number in (1, 2, 9):
        for metric in metrics:
            bits = draw.choice((4, 12, 40, 62))
            switches.amounts[metric, ("leaf-2", f"Ethernet1/{number}"), PRIORITY] = (
                lambda _, bits=bits: draw.getrandbits(bits)
            )
    foreign = switches.links["leaf-3", "Ethernet1/1"]
    switches.links["leaf-2", "Ethernet1/9"] = foreign._replace(
        switch="leaf-2", port="Ethernet1/9", is_certain=False
    )
    polls = switches.polls(["leaf-2"], end_ns(frames, 290), 10)
    found = diagnose(frames, switches, polls, tmp_path, 290)
    assert len(found) <= 4
    for each in found:
        assert each.incident_class in {"ecn_late", "pause_counts_differ", "headroom_low"}
        assert isinstance(each.cause, LeafDocument)
