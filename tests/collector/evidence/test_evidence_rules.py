"""One rule each, through the core: what becomes of a GPU's time when something goes wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs
from support.story import (
    DAY,
    SECOND,
    Reporter,
    accept,
    account_at,
    at,
    core_in,
    counting,
    cut,
    ended,
    gpus_of,
    host,
    known_of,
    ports_of,
    seconds_of,
    started,
)

from collector.account.amounts import Whose, counted_in
from collector.core import Checkpoint, Core
from collector.evidence import calendar_file, claims_file, tenants_file
from collector.evidence.assemble import Files
from collector.evidence.seen import sku_of
from collector.metering.evidence import Witness
from collector.metering.measures import Measure, Use
from collector.metering.tiling import State, tile
from collector.metering.units import Tiling

ALICE = {"tenant": "alice"}


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return core_in(tmp_path)


def states(core: Core, second: int, name: str = "GPU-0", files: Files | None = None):
    """Compute entries of a GPU from second 0 on, as (state, tenant, from, to) with whole seconds."""
    found = tile(known_of(core, name, files).evidence, at(-10_000), at(second))
    return [
        (e.state.value, e.tenant, (e.t0_ns - at(0)) / SECOND, (e.t1_ns - at(0)) / SECOND)
        for e in found
        if e.tiling is Tiling.COMPUTE and (e.slot_lo, e.slot_hi) == (0, 840)
    ]


def energy(core: Core, name: str = "GPU-0", files: Files | None = None):
    days = counted_in(known_of(core, name, files), at(-10_000), at(100_000))
    return {
        (whose.use.value, whose.tenant): amount
        for totals in days.values()
        for whose, amount in totals.items()
        if whose.measure is Measure.ENERGY and amount
    }


def troubles(core: Core) -> list:
    found: list = []
    core.evidence.listeners.append(found.append)
    return found


async def test_a_claim_holds_from_its_start_to_its_end(core: Core):
    events = {50: [started("GPU-0", "job-1", 40, **ALICE)], 80: [ended("GPU-0", "job-1", 75)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 5), events=events))
    assert states(core, 120) == [
        ("idle", "", 0, 40), ("observed", "alice", 40, 75), ("idle", "", 75, 100),
        ("unknown", "", 100, 120),
    ]  # fmt: skip
    account = await account_at(core, 120)
    assert account.balances
    assert seconds_of(account) == {
        ("idle", ""): 65, ("observed", "alice"): 35, ("unknown", ""): 20,
    }  # fmt: skip


async def test_a_node_that_never_comes_back_keeps_its_claim_without_a_witness(core: Core):
    events = {50: [started("GPU-0", "job-1", 40, **ALICE)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    day = [
        e
        for e in tile(known_of(core, "GPU-0").evidence, at(0), at(86_400))
        if e.tiling == "compute"
    ]
    assert [(e.state, e.witness, (e.t0_ns - at(0)) // SECOND) for e in day] == [
        (State.IDLE, None, 0), (State.OBSERVED, None, 40), (State.INFERRED, Witness.NONE, 100),
    ]  # fmt: skip
    account = await account_at(core, 86_400)
    assert seconds_of(account)["inferred", "alice"] == 86_300


def test_other_streams_and_the_scheduler_are_witnesses_of_a_gpu_that_is_silent(core: Core):
    node = Reporter()
    seen = {40: [started("GPU-0", "job-1", 40, level="node_plugin", **ALICE)]}
    accept(core, node.told(gpus_of("GPU-0"), range(0, 61, 10), events=seen))
    accept(core, node.told(host(), range(0, 201, 10)))
    accept(core, node.told(gpus_of("GPU-0"), range(200, 261, 10)))
    silent = [
        e for e in tile(known_of(core, "GPU-0").evidence, at(60), at(200)) if e.tiling == "compute"
    ]
    assert [(e.state, e.witness, e.silence_ns) for e in silent] == [
        (State.INFERRED, Witness.NODE_READY, 140 * SECOND)
    ]
    accept(core, node.told(host(), [300], events={300: [started("GPU-0", "j", 60, **ALICE)]}))
    silent = [
        e for e in tile(known_of(core, "GPU-0").evidence, at(60), at(200)) if e.tiling == "compute"
    ]
    assert {(e.claim, e.witness) for e in silent} == {("j", Witness.SCHEDULER)}


def test_a_reboot_is_a_silence_and_counts_from_zero(core: Core):
    events = {0: [started("GPU-0", "job-1", 0, **ALICE)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 91, 10), events=events))
    after = Reporter(boot_id="boot-2", run="run-2", booted_at=100)
    rising = after.told(
        gpus_of("GPU-0"), range(105, 196, 10), values=lambda s, n: counting(s - 10_100, n),
        events={115: events[0]},
    )  # fmt: skip
    accept(core, rising)
    assert states(core, 195) == [
        ("observed", "alice", 0, 90), ("inferred", "alice", 90, 105), ("observed", "alice", 105, 195),
    ]  # fmt: skip
    assert set(energy(core)) == {("attributed", "alice"), ("unattributed", "")}


def test_a_claim_that_a_node_does_not_know_after_a_reboot_ended_with_it(core: Core):
    events = {0: [started("GPU-0", "job-1", 0, **ALICE)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 91, 10), events=events))
    for boot, first in (("boot-2", 105), ("boot-3", 305)):
        after = Reporter(boot_id=boot, run=boot, booted_at=first - 5)
        accept(core, after.told(gpus_of("GPU-0"), range(first, first + 91, 10)))
    assert states(core, 195) == [
        ("observed", "alice", 0, 90), ("inferred", "alice", 90, 105), ("idle", "", 105, 195),
    ]  # fmt: skip
    told = after.told(host(), [400], events={400: events[0]})
    accept(core, told)
    assert states(core, 195)[-1] == ("observed", "alice", 105, 195), "it was told late"


def test_what_was_left_of_the_boot_before_is_as_old_as_the_wall_clock_says(core: Core):
    before = Reporter()
    frames = before.frames(gpus_of("GPU-0"), range(0, 51, 10))
    after = Reporter(boot_id="boot-2", run="run-2", booted_at=80)
    late, envelope = before.record(frames)
    clocks = after.record(after.frames(host(), [100]))[0].sent
    sent_later = msgspec.structs.replace(late, received_wall_ns=at(100), sent=clocks)
    accept(core, [(sent_later, envelope), *after.told(gpus_of("GPU-0"), range(100, 131, 10))])
    assert states(core, 130) == [
        ("idle", "", 0, 50), ("unknown", "", 50, 100), ("idle", "", 100, 130),
    ]  # fmt: skip


def test_neither_the_order_of_arrival_nor_a_gap_moves_a_boundary(core: Core):
    """A node that was cut off: its backlog comes last, and hours late."""
    node = Reporter()
    events = {30: [started("GPU-0", "a", 25, **ALICE)], 7200: [ended("GPU-0", "a", 7150)]}
    frames = node.frames(gpus_of("GPU-0"), range(0, 7261, 10), events=events)
    newest = node.record(frames[-10:])
    backlog = [node.record(frames[i : i + 50], sent=9000 + i) for i in range(0, len(frames), 50)]
    accept(core, [newest, *reversed(backlog)])
    assert states(core, 7260) == [
        ("idle", "", 0, 25), ("observed", "alice", 25, 7150), ("idle", "", 7150, 7260),
    ]  # fmt: skip


def test_a_counter_that_starts_over_loses_nothing_and_is_never_negative(core: Core):
    node = Reporter(booted_at=-6000)
    events = {0: [started("GPU-0", "job-1", 0, **ALICE)]}
    accept(core, node.told(gpus_of("GPU-0"), range(0, 121, 30), events=events,
                           values=lambda s, _: [0, 0, 1000 + s]))  # fmt: skip
    accept(
        core, node.told(gpus_of("GPU-0"), range(150, 241, 30), values=lambda s, _: [0, 0, s - 140])
    )
    column = next(i for i, (m, _) in enumerate(gpus_of("GPU-0").columns) if "energy" in m.name)
    assert column in {0, 1, 2}
    known = known_of(core, "GPU-0")
    counted = known.counted[Measure.ENERGY if column == 2 else Measure.USED]
    assert counted.amounts.min() >= 0
    assert [(r.last_ns - at(0)) // SECOND for r in counted.resets()] == [120]
    assert counted.amounts.sum() == 120 + 100


def test_a_wall_clock_that_steps_moves_no_sample_and_quarantines_what_it_taints(core: Core):
    heard = troubles(core)
    node = Reporter()
    accept(core, node.told(gpus_of("GPU-0"), range(0, 51, 10)))
    node.skew = 30
    accept(core, node.told(gpus_of("GPU-0"), range(60, 111, 10)))
    flagged = known_of(core, "GPU-0").evidence.stretches
    assert {s.skew_ns > 2 * SECOND for s in flagged} == {False, True}
    assert states(core, 110) == [("idle", "", 0, 110)], "the boot clock counts"
    assert not heard
    node.skew = 3600
    accept(core, node.told(gpus_of("GPU-0"), range(120, 171, 10)))
    assert states(core, 170) == [("idle", "", 0, 110), ("unknown", "", 110, 170)]
    assert [(t.kind, t.node) for t in heard] == [("quarantine", "n1")]


async def test_claims_count_whatever_the_clock(core: Core):
    node = Reporter(skew=3600)
    accept(core, node.told(gpus_of("GPU-0"), range(0, 51, 10),
                           events={20: [started("GPU-0", "job-1", 10, **ALICE)]}))  # fmt: skip
    assert seconds_of(await account_at(core, 50)) == {
        ("inferred", "alice"): 40, ("unknown", ""): 10,
    }  # fmt: skip


def test_a_sample_as_near_to_a_claim_as_the_clock_is_uncertain_belongs_to_it(core: Core):
    node = Reporter(uncertainty_ns=2 * SECOND)
    events = {20: [started("GPU-0", "job-1", -1, **ALICE)]}
    accept(core, node.told(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    claim = known_of(core, "GPU-0").evidence
    assert claim.stretches[0].uncertainty_ns == 2 * SECOND
    assert states(core, 50)[0] == ("observed", "alice", 0, 50)


def test_a_gpu_that_is_cut_in_the_middle_of_an_hour_has_stranded_parts(core: Core):
    node = Reporter()
    accept(core, node.told(gpus_of("GPU-0"), range(0, 101, 10)))
    accept(core, node.told(cut("GPU-0"), range(0, 41, 10)))
    accept(core, node.told(cut("GPU-0", "3g.40gb", "3g.40gb"), range(50, 81, 10)))
    accept(core, node.told(cut("GPU-0"), range(90, 101, 10)))
    evidence = known_of(core, "GPU-0").evidence
    assert [(x.start_ns - at(0)) // SECOND for x in evidence.layouts] == [0, 50, 90]
    stranded = [e for e in tile(evidence, at(0), at(100)) if e.state is State.STRANDED]
    assert [(e.tiling, e.slot_hi - e.slot_lo, (e.t0_ns - at(0)) // SECOND, (e.t1_ns - at(0)) // SECOND)
            for e in stranded] == [("compute", 120, 50, 90)]  # fmt: skip


def test_parts_of_a_gpu_have_holders_of_their_own(core: Core):
    node = Reporter()
    half = {"compute": "0-420", "memory": "0-420"}
    events = {10: [started("GPU-0", "a", 10, tenant="alice", **half),
                   started("GPU-0", "b", 10, tenant="bob", compute="420-840", memory="420-840")],
              60: [ended("GPU-0", "a", 50)]}  # fmt: skip
    accept(core, node.told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    found = {
        (e.tenant, e.slot_lo, e.slot_hi, (e.t0_ns - at(0)) // SECOND, (e.t1_ns - at(0)) // SECOND)
        for e in tile(known_of(core, "GPU-0").evidence, at(0), at(100))
        if e.tenant
    }
    assert found == {("alice", 0, 420, 10, 50), ("bob", 420, 840, 10, 100)}


async def test_a_gpu_passes_from_one_tenant_to_the_next_without_a_hole(core: Core):
    heard = troubles(core)
    events = {60: [ended("GPU-0", "a", 50), started("GPU-0", "b", 50, tenant="bob")],
              10: [started("GPU-0", "a", 0, **ALICE)]}  # fmt: skip
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 50, ("observed", "bob"): 50,
    }  # fmt: skip
    assert not heard


async def test_two_claims_of_one_level_on_one_slot_are_told_and_billed_once(core: Core):
    heard = troubles(core)
    events = {10: [started("GPU-0", "a", 0, **ALICE), started("GPU-0", "b", 40, tenant="bob")]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 40, ("observed", "bob"): 60,
    }  # fmt: skip
    assert [(t.kind, t.gpu, t.facts["earlier"], t.facts["later"]) for t in heard] == [
        ("conflict", "GPU-0", "a", "b")
    ]
    await account_at(core, 100)
    assert len(heard) == 1, "said once"


async def test_use_without_a_claim_is_rogue(core: Core):
    events = {
        10: [
            started(
                "GPU-0", "x", 10, unclaimed=True, level="process", owner="root", source="process"
            )
        ]
    }
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert seconds_of(await account_at(core, 50)) == {
        ("idle", ""): 10, ("rogue", "process:root"): 40,
    }  # fmt: skip


async def test_a_gpu_that_moves_takes_node_claims_along_only_from_then_on(core: Core):
    accept(core, Reporter("n1").told(gpus_of("GPU-0"), range(0, 101, 10)))
    accept(core, Reporter("n2", "boot-9").told(gpus_of("GPU-0"), range(200, 301, 10)))
    text = f"tenant,holds,from,to\nalice,n1,{stamp(0)},\nbob,n2,{stamp(0)},\n"
    files = Files(claims=claims_file.parse(text))
    account = await account_at(core, 300, files)
    assert account.balances
    assert seconds_of(account) == {
        ("observed", "alice"): 100, ("inferred", "alice"): 100, ("observed", "bob"): 100,
    }  # fmt: skip


async def test_of_two_nodes_with_one_gpu_the_first_stands_whatever_times_the_other_gives(
    core: Core,
):
    heard = troubles(core)
    accept(core, Reporter("n1").told(gpus_of("GPU-0"), range(1000, 1101, 10)))
    thief = Reporter("n2", "boot-9")
    frames = thief.frames(gpus_of("GPU-0"), range(900, 1201, 10))
    accept(core, [thief.record(frames, sent=1200)])
    account = await account_at(core, 1200)
    assert account.balances
    assert [(t.kind, t.gpu, t.node) for t in heard] == [("seen_twice", "GPU-0", "n2")]
    stays = [
        (s.node, (s.start_ns - at(0)) // SECOND) for s in known_of(core, "GPU-0").evidence.stays
    ]
    assert stays == [("n2", 900), ("n1", 1000), ("n2", 1130)], "n1's time stands with a gap around"


def test_a_node_speaks_for_its_own_gpus_only(core: Core):
    accept(core, Reporter("n1").told(gpus_of("GPU-0"), range(0, 101, 10)))
    stranger = Reporter("n2", "boot-9")
    events = {10: [started("GPU-0", "x", 0, tenant="mallory", level="administrator"),
                   started("GPU-9", "y", 0, tenant="mallory")]}  # fmt: skip
    accept(core, stranger.told(gpus_of("GPU-1"), range(0, 101, 10), events=events))
    assert states(core, 100) == [("idle", "", 0, 100)]


def test_the_end_that_a_stranger_tells_ends_nothing(core: Core):
    events = {10: [started("GPU-0", "a", 0, **ALICE)]}
    accept(core, Reporter("n1").told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    accept(
        core,
        Reporter("n2", "boot-9").told(
            gpus_of("GPU-1"), [50], events={50: [ended("GPU-0", "a", 20)]}
        ),
    )
    assert states(core, 100) == [("observed", "alice", 0, 100)]


def test_an_end_may_be_heard_before_the_start(core: Core):
    node = Reporter()
    early = node.told(
        gpus_of("GPU-0"), range(0, 51, 10), events={20: [started("GPU-0", "a", 10, **ALICE)]}
    )
    late = node.told(gpus_of("GPU-0"), range(60, 101, 10), events={60: [ended("GPU-0", "a", 55)]})
    accept(core, [*late, *early])
    assert states(core, 100) == [
        ("idle", "", 0, 10), ("observed", "alice", 10, 55), ("idle", "", 55, 100)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [{"level": "king"}, {"start_ns": "soon"}, {"compute": "0-900"}, {"compute": "500-400"},
     {"owner": "a\0b"}, {"start_ns": "9" * 19}],
)  # fmt: skip
def test_a_claim_that_cannot_be_is_told_and_left_out(core: Core, facts: dict[str, str]):
    heard = troubles(core)
    events = {10: [started("GPU-0", "a", 0, **facts)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert core.evidence.refused == 1
    assert [t.kind for t in heard] == ["refused_claim"]
    assert states(core, 50) == [("idle", "", 0, 50)]


def stamp(second: int) -> str:
    """A second of the story as files spell it."""
    hours, rest = divmod(second, 3600)
    assert DAY == 20_700
    return f"2026-09-04T{hours:02}:{rest // 60:02}:{rest % 60:02}Z"


def test_stamps_are_seconds_of_the_story():
    found = claims_file.parse(f"tenant,holds,from,to\na,b,{stamp(3661)},\n")
    assert next(iter(found)).start_ns == at(3661)


def test_an_owner_is_whose_the_file_says_at_each_instant(core: Core):
    events = {10: [started("GPU-0", "a", 0, owner="ns", source="kubernetes")]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert states(core, 100) == [("observed", "kubernetes:ns", 0, 100)], "marked, and not lost"
    text = (
        "tenant,source,owner,from,to\n"
        f"anyone,*,ns,{stamp(20)},{stamp(80)}\n"
        f"alice,kubernetes,ns,{stamp(40)},{stamp(60)}\n"
    )
    files = Files(tenants=tenants_file.parse(text))
    assert states(core, 100, files=files) == [
        ("observed", "kubernetes:ns", 0, 20), ("observed", "anyone", 20, 40),
        ("observed", "alice", 40, 60), ("observed", "anyone", 60, 80),
        ("observed", "kubernetes:ns", 80, 100),
    ]  # fmt: skip
    evidence = known_of(core, "GPU-0", files).evidence
    assert len({claim.id for claim in evidence.claims}) == 5


def test_an_administrator_goes_before_the_scheduler(core: Core):
    events = {10: [started("GPU-0", "a", 0, **ALICE)]}
    accept(core, Reporter().told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    text = f"tenant,holds,from,to\nbob,GPU-0,{stamp(30)},{stamp(60)}\n"
    assert states(core, 100, files=Files(claims=claims_file.parse(text))) == [
        ("observed", "alice", 0, 30), ("observed", "bob", 30, 60), ("observed", "alice", 60, 100),
    ]  # fmt: skip


async def test_a_calendar_says_maintenance_outages_and_reservations(core: Core):
    events = {0: [started("GPU-0", "a", 0, **ALICE)]}
    accept(core, Reporter().told(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events))
    text = f"""
        [[maintenance]]
        holds = "n1"
        from = {stamp(20)}
        to = {stamp(30)}
        [[outage]]
        holds = "GPU-0"
        from = "{stamp(40)}"
        to = "{stamp(50)}"
        [[reservation]]
        name = "r1"
        tenant = "bob"
        holds = "GPU-1"
        from = {stamp(60)}
    """
    account = await account_at(core, 100, Files(calendar=calendar_file.parse(text)))
    assert account.balances
    assert seconds_of(account) == {
        ("observed", "alice"): 80, ("maintenance", "alice"): 10, ("down", "alice"): 10,
        ("idle", ""): 50, ("maintenance", ""): 10, ("reserved", "bob"): 40,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[holiday]]\n", "holiday"),
        ("[[maintenance]]\nholds = 'n1'\n", "maintenance 1: from is missing"),
        ("[[outage]]\nholds = 'n1'\nfrom = 2026-01-01T00:00:00\n", "no offset"),
        ("[[outage]]\nholds = 'n1'\nfrom = 2026-01-02T00:00:00Z\nto = 2026-01-01T00:00:00Z\n", "ends before"),
        ("[[outage]]\nholds = ''\nfrom = 2026-01-02T00:00:00Z\n", "holds must be a text"),
        ("[[outage]]\nwhat = 1\nholds = 'x'\nfrom = 2026-01-02T00:00:00Z\n", "what is none of"),
        ("outage = 3\n", "must be tables"),
        ("[[outage\n", "line 1"),
    ],
)  # fmt: skip
def test_a_calendar_that_cannot_be_names_the_entry(text: str, problem: str):
    with pytest.raises(calendar_file.FileError, match=problem):
        calendar_file.parse(text)


@pytest.mark.parametrize(
    ("row", "problem"),
    [(",slurm,x,2026-01-01T00:00:00Z,", "line 2"), ("a:b,slurm,x,2026-01-01T00:00:00Z,", "colon"),
     ("a,slurm,x,yesterday,", "no time")],
)  # fmt: skip
def test_a_tenants_file_that_cannot_be_names_the_line(row: str, problem: str):
    with pytest.raises(tenants_file.FileError, match=problem):
        tenants_file.parse(f"tenant,source,owner,from,to\n{row}\n")


def test_traffic_of_a_rail_is_that_of_its_gpu(core: Core):
    node = Reporter(booted_at=-6000)
    events = {0: [started("GPU-1", "a", 0, **ALICE)]}
    accept(core, node.told(gpus_of("GPU-0", "GPU-1"), range(0, 121, 10), events=events))
    accept(
        core,
        node.told(
            ports_of(2), range(0, 121, 10), values=lambda s, _: [s, 10 * s, 100 * s, 1000 * s]
        ),
    )
    known = known_of(core, "GPU-1")
    totals = {
        whose: amount
        for found in counted_in(known, at(-1), at(1000)).values()
        for whose, amount in found.items()
    }
    columns = [(m.name, e.key[0]) for m, e in ports_of(2).columns]
    rate = {name: 10**place for place, name in enumerate(columns)}
    for measure, word in ((Measure.RECEIVED, "receive"), (Measure.TRANSMITTED, "transmit")):
        expected = 120 * rate[f"railscope_rdma_{word}_bytes_total", "mlx5_1"]
        assert totals[Whose(measure, Use.ATTRIBUTED, "alice")] == expected
    assert known.sku == sku_of("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


def test_what_a_restart_reads_again_is_as_it_was(core: Core, tmp_path: Path):
    node = Reporter()
    events = {10: [started("GPU-0", "a", 0, **ALICE)]}
    accept(core, node.told(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    content = msgspec.msgpack.encode(core.checkpoint(1))
    again = core_in(tmp_path)
    again.resume(msgspec.msgpack.decode(content, type=Checkpoint))
    assert again.evidence.pages() == core.evidence.pages()


def test_trouble_is_said_in_the_log(core: Core):
    with capture_logs() as logs:
        node = Reporter(skew=7200)
        accept(core, node.told(gpus_of("GPU-0"), range(0, 101, 10)))
    assert [
        (line["kind"], line["node"]) for line in logs if line["event"] == "evidence_trouble"
    ] == [("quarantine", "n1")]
