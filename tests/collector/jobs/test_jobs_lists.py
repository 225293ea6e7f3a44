"""Job lists by source and period: additive, corrected, in any order, one ledger."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from support.examples import fewer
from support.shared import captured

from collector.jobs import imported_lists
from collector.jobs.imported_lists import ImportActor, JobLedgerError, NewList, PlacedJob
from collector.jobs.job_list import GpuModels, JobList, ListedGpu, ListedJob, UnnamedGpus
from collector.jobs.job_list_import import ImportCounts, import_list, number_stand_ins, place_jobs
from collector.jobs.job_list_reader import read_jobs
from collector.ledger.audit_outbox import outbox_rows
from collector.ledger.ledger_store import Ledger
from collector.metering.tiling import SlotState
from collector.metering.units import (
    DAY_NS,
    FOREVER_NS,
    GPU_CAPACITY,
    Period,
    Tiling,
    format_timestamp,
    period_name,
)
from collector.tables import metadata
from railscope.audit.record import RecordActor
from railscope.cli import root as railscope

S = 1_000_000_000
HOUR = 3600 * S
BY = ImportActor(RecordActor("operator", "op", "test"), 100 * DAY_NS)
FIRST, SECOND = Period(0, 3 * DAY_NS), Period(3 * DAY_NS, 6 * DAY_NS)
CAMERA, OTHER = "00000000:01:00.0", "00000000:02:00.0"


def job(  # noqa: PLR0913, PLR0917 - in the order in which a list has them
    number: object, gpu: str, start_hours: int, end_hours: int, tenant: str = "a", model: str = ""
) -> PlacedJob:
    return PlacedJob(
        gpu, start_hours * HOUR, str(number), tenant, end_hours * HOUR, gpu.partition("/")[0], model
    )


def listed(source: str, period: Period, *jobs: PlacedJob) -> NewList:
    """A list of the jobs that have time in a period."""
    own = [one for one in jobs if one.start_ns < period.end_ns and one.end_ns > period.start_ns]
    return NewList(source, period, period.end_ns, as_observed=True, jobs=own)


def imported(*found: NewList) -> Ledger:
    ledger = Ledger.open("sqlite://", metadata)
    for one in found:
        import_list(ledger, one, BY)
    return ledger


def contents(ledger: Ledger, gpus: Iterable[str] | None = None) -> dict[tuple[str, int], str]:
    """The content of every GPU-day that has any."""
    newest = ledger.newest(0, 1000, gpus)
    return {
        (one.tiling.gpu, one.tiling.day): one.content_root
        for one in ledger.revisions(newest)
        if one.tiling.entries
    }


def held(ledger: Ledger) -> dict[str, int]:
    """GPU-hours by tenant."""
    totals = ledger.totals(0, FOREVER_NS).items()
    return {
        of.tenant: quantity // GPU_CAPACITY // HOUR
        for of, quantity in totals
        if of.tiling is Tiling.COMPUTE and of.state in (SlotState.OBSERVED, SlotState.INFERRED)
    }


A1 = job(1, "n1/g0", 10, 20)
B1 = job(1, "m1/g0", 5, 9, "b")


def test_a_list_of_another_source_leaves_what_is_there():
    ledger = imported(listed("alex", FIRST, A1))
    before = contents(ledger)
    import_list(ledger, listed("fritz", FIRST, B1), BY)
    after = contents(ledger)
    assert {key: after[key] for key in before} == before
    assert held(ledger) == {"a": 10, "b": 4}


def test_a_later_period_says_nothing_of_gpus_that_it_does_not_name():
    ledger = imported(listed("alex", FIRST, A1), listed("alex", SECOND, job(2, "n1/g1", 80, 90)))
    assert {gpu for gpu, day in contents(ledger) if day >= 3} == {"n1/g1"}


def test_a_corrected_list_replaces_exactly_its_jobs():
    moved = [job(1, "n1/g1", 10, 20), job(3, "n1/g2", 1, 2, "c")]
    ledger = imported(
        listed("alex", FIRST, A1, job(2, "n1/g2", 0, 5)),
        listed("alex", SECOND, job(4, "n1/g0", 80, 90)),
        listed("fritz", FIRST, B1),
        listed("alex", FIRST, *moved),
    )
    fresh = imported(
        listed("fritz", FIRST, B1),
        listed("alex", FIRST, *moved),
        listed("alex", SECOND, job(4, "n1/g0", 80, 90)),
    )
    assert contents(ledger) == contents(fresh)
    assert held(ledger) == {"a": 20, "b": 4, "c": 1}
    assert not [key for key in contents(ledger) if key[0] == "n1/g0" and key[1] < 3]


def test_importing_again_adds_nothing():
    one = listed("alex", FIRST, A1)
    ledger = imported(one)
    assert import_list(ledger, one, BY) == ImportCounts(0, 3)
    assert [found.number for found in imported_lists.newest_lists(ledger.database)] == [1]
    with ledger.database.transaction() as connection:
        imports = select(outbox_rows).where(outbox_rows.c.type == "billing.import")
        (record,) = connection.execute(imports).all()
    assert record.type == "billing.import"
    assert "jobs.import.v1" in record.data


def test_periods_of_a_source_do_not_overlap():
    ledger = imported(listed("alex", FIRST, A1))
    overlapping = listed("alex", Period(2 * DAY_NS, 4 * DAY_NS), A1)
    with pytest.raises(JobLedgerError, match=r"period .* of source alex: overlaps .* fix: "):
        import_list(ledger, overlapping, BY)
    assert held(ledger) == {"a": 10}
    import_list(ledger, overlapping._replace(source="fritz"), BY)


def test_two_models_of_one_gpu_are_an_error_and_change_nothing():
    ledger = imported(listed("alex", FIRST, job(1, "n1/g0", 1, 2, model="a40")))
    before = contents(ledger)
    with pytest.raises(JobLedgerError, match="model of n1/g0: a100 and a40"):
        import_list(ledger, listed("fritz", FIRST, job(2, "n1/g0", 3, 4, model="a100")), BY)
    assert contents(ledger) == before
    assert [one.source for one in imported_lists.newest_lists(ledger.database)] == ["alex"]


def test_a_job_over_the_edge_of_two_periods_is_one_claim():
    over = job(7, "n1/g0", 70, 75)
    ledger = imported(listed("alex", SECOND, over), listed("alex", FIRST, over))
    assert held(ledger) == {"a": 5}
    (claim,) = {entry.claim for entry in ledger.entries(0, 6 * DAY_NS) if entry.claim}
    assert claim == f"alex/7@{70 * 3600}"


# Properties --------------------------------------------------------------------------------------

jobs = st.builds(
    job, st.integers(1, 5), st.sampled_from(["n1/g0", "n1/g1", "n2/g0"]), st.integers(0, 143),
    st.integers(0, 150), st.sampled_from("abc"),
).filter(lambda one: one.start_ns < one.end_ns)  # fmt: skip
versions = st.lists(
    st.tuples(st.sampled_from(["alex", "fritz"]), st.sampled_from([FIRST, SECOND]),
              st.lists(jobs, max_size=4, unique_by=lambda one: (one.claim, one.gpu))),
    min_size=1, max_size=5,
)  # fmt: skip


@fewer(40)
@given(versions, st.randoms(use_true_random=False))
def test_p26_imports_in_any_order_and_repetition_give_one_ledger(found, random):
    newest = {(source, period): own for source, period, own in found}
    fresh = [listed(source, period, *own) for (source, period), own in newest.items()]
    random.shuffle(fresh)
    history = [listed(source, period, *own) for source, period, own in found]
    once, corrected = imported(*fresh), imported(*history)
    again = imported(*fresh, *reversed(fresh), *fresh)
    assert contents(once) == contents(corrected) == contents(again)


@fewer(30)
@given(versions, versions)
def test_p26_a_list_changes_no_gpu_of_other_sources_or_periods(found, more):
    ledger = imported(*(listed(source, period, *own) for source, period, own in found))
    source, period, own = more[0]
    before = contents(ledger)
    import_list(ledger, one := listed(source, period, *own), BY)
    after = contents(ledger)
    with ledger.database.transaction() as connection:
        touched = imported_lists.gpus_of(connection, source, period)
    days = range(one.period.start_ns // DAY_NS, one.period.end_ns // DAY_NS)
    for key in before.keys() | after.keys():
        if key[0] not in touched or key[1] not in days:
            assert before.get(key) == after.get(key)


# Models and stand-ins ----------------------------------------------------------------------------


def counted(number: int, tenant: str, node: str, gpus: int, model: str = "") -> ListedJob:
    return ListedJob(
        number * HOUR, str(number), tenant, "u", (number + 10) * HOUR,
        unplaced=(UnnamedGpus(node, gpus, "counted", model),),
    )  # fmt: skip


def test_models_come_from_the_inventory_by_gpu_by_node_the_list_and_then_the_default():
    gpus = [
        ListedGpu("n1", CAMERA),
        ListedGpu("n1", OTHER),
        ListedGpu("n2", CAMERA),
        ListedGpu("n3", CAMERA),
    ]
    models = GpuModels({gpus[0]: "own"}, {"n1": "of-n1"}, "default")
    found = place_jobs(
        JobList((
            ListedJob(0, "1", "a", "u", HOUR, (gpus[0], gpus[1], gpus[3])),
            ListedJob(0, "2", "a", "u", HOUR, (gpus[0], gpus[2]), model="listed"),
        )),
        models,
    )  # fmt: skip
    assert {one.gpu: one.model for one in found} == {
        f"n1/{CAMERA}": "own", f"n1/{OTHER}": "of-n1", f"n2/{CAMERA}": "listed",
        f"n3/{CAMERA}": "default",
    }  # fmt: skip


def test_a_list_that_names_two_models_of_one_gpu_is_refused():
    gpu = (ListedGpu("n1", CAMERA),)
    two = (
        ListedJob(0, "1", "a", "u", HOUR, gpu, model="a40"),
        ListedJob(0, "2", "a", "u", 1, gpu, model="x"),
    )
    with pytest.raises(JobLedgerError, match=f"model of n1/{CAMERA}: a40 and x"):
        place_jobs(JobList(two), GpuModels())


def test_stand_ins_are_named_by_source_node_model_and_number():
    jobs_ = [counted(0, "a", "n1", 2, "a40"), counted(1, "b", "n1", 1, "a100"),
             counted(2, "c", "n[1-2]", 1), counted(20, "d", "n1", 1, "a40")]  # fmt: skip
    found = number_stand_ins(jobs_, "alex", GpuModels(by_node={"n9": "x"}))
    assert [[str(gpu) for gpu in one.gpus] for one in found.jobs] == [
        ["n1/alex:a40:000001", "n1/alex:a40:000002"], ["n1/alex:a100:000001"],
        ["unnamed/alex:000001"], ["n1/alex:a40:000001"],
    ]  # fmt: skip
    assert set(found.models.values()) == {"a40", "a100", ""}


def test_the_order_of_jobs_does_not_change_stand_ins():
    jobs_ = [counted(number, "a", "n1", 1) for number in range(4)]
    named = [str(one.gpus) for one in number_stand_ins(jobs_, "s", GpuModels()).jobs]
    for other in permutations(jobs_):
        assert [str(one.gpus) for one in number_stand_ins(other, "s", GpuModels()).jobs] == named


# Commands ----------------------------------------------------------------------------------------


def clustercockpit(
    number: int, start: int, node: str, gpu: str, **more: object
) -> dict[str, object]:
    """A job in the JSON of ClusterCockpit; `start` in hours after the start of October."""
    return {
        "jobId": number, "cluster": "alex", "subCluster": "main", "project": "p", "user": "u",
        "startTime": 1_790_812_800 + start * 3600, "duration": 3600, "jobState": "completed",
        "numAcc": 1, "shared": "none",
        "resources": [{"hostname": node, "hwthreads": [0], "accelerators": [gpu]}],
    } | more  # fmt: skip


class Place:
    """A directory with a ledger."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'ledger.sqlite'}"

    def run(self, text: str, *words: str) -> Result:
        file = self.directory / "jobs"
        file.write_text(text)
        return CliRunner().invoke(
            railscope, ["bill", "import-jobs", str(file), "--ledger", self.url, *words]
        )

    def held(self) -> dict[str, int]:
        ledger = Ledger.open(self.url, metadata)
        found = held(ledger)
        ledger.close()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


OCTOBER = ("--period", "2026-10", "--as-of", "2026-11-01T00:00:00Z")


@pytest.mark.parametrize("form", ["lines", "array", "documents", "api"])
def test_clustercockpit_json_is_read_in_all_its_forms(place, form):
    jobs_ = [clustercockpit(1, 0, "n1", CAMERA), clustercockpit(2, 5, "n1", CAMERA)]
    text = {
        "lines": "\n".join(map(json.dumps, jobs_)),
        "array": json.dumps(jobs_, indent=1),
        "documents": "\n".join(json.dumps(one, indent=2) for one in jobs_),
        "api": json.dumps({"items": 50, "page": 1, "jobs": jobs_}),
    }[form]
    found = place.run(text, *OCTOBER)
    assert found.exit_code == 0, found.output
    assert place.held() == {"p": 2}
    (one,) = imported_lists.newest_lists(Ledger.open(place.url, metadata).database)
    assert one.source == "slurm:alex"


def test_a_bad_line_is_named_and_the_rest_is_imported(place):
    lines = [
        json.dumps(clustercockpit(1, 0, "n1", CAMERA)),
        json.dumps(clustercockpit(2, 5, "n1", CAMERA, startTime="soon")),
        '{"jobId": 3, "startTime"',
        json.dumps(clustercockpit(4, 9, "n1", CAMERA)),
    ]
    text = "\n".join(lines)
    strict = place.run(text, *OCTOBER, "--strict")
    assert strict.exit_code == 1
    assert 'line 2: startTime: "soon" is no whole number' in strict.output
    assert not Path(place.url.removeprefix("sqlite:///")).exists()
    found = place.run(text, *OCTOBER)
    assert found.exit_code == 0, found.output
    assert "NOT COMPLETE, not imported: 2 lines" in found.output
    assert '  line 2: startTime: "soon" is no whole number from 0 on' in found.output
    assert "  line 3: no JSON" in found.output
    assert place.held() == {"p": 2}
    (one,) = imported_lists.newest_lists(Ledger.open(place.url, metadata).database)
    assert one.rejected_count == 2


def test_a_job_in_a_final_state_has_an_end(place):
    final = clustercockpit(1, 0, "n1", CAMERA)
    del final["duration"]
    text = "\n".join(map(json.dumps, [final, clustercockpit(2, 5, "n1", CAMERA)]))
    found = place.run(text, *OCTOBER)
    assert "line 1: duration: is missing" in found.output
    assert place.held() == {"p": 1}
    header = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES"
    rows = [
        "1|u|a|COMPLETED|1790812800|Unknown|n1|gres/gpu=1",
        "2|u|a|RUNNING|1790812800|Unknown|n1|gres/gpu=1",
    ]
    counted_ = place.run("\n".join([header, *rows]), *OCTOBER, "--stand-ins", "--source", "x")
    assert "line 2: End: is unknown, but State is COMPLETED" in counted_.output
    assert place.held() == {"p": 1, "a": 31 * 24}


@pytest.mark.parametrize(
    ("as_of", "hours_"), [("2026-10-01T10:00:00Z", 10), ("2026-12-24", 31 * 24)]
)
def test_unfinished_jobs_last_as_long_in_the_report_as_in_the_ledger(place, as_of, hours_):
    running = clustercockpit(1, 0, "n1", CAMERA, jobState="running", duration=17)
    text = json.dumps(running)
    found = place.run(text, "--period", "2026-10", "--as-of", as_of, "--json")
    document = json.loads(found.stdout)
    assert document["running"] == ["1"]
    assert document["tenants"][0]["gpu_hours"] == f"{hours_}:00:00"
    assert int(document["capacity_ns"]) == 31 * DAY_NS
    assert place.held() == {"p": hours_}


def days_of(place: Place) -> tuple[int, int]:
    """First and last day with entries in a ledger."""
    ledger = Ledger.open(place.url, metadata)
    found = [day for _, day in contents_until(ledger, 1 << 20)]
    ledger.close()
    return min(found), max(found)


def contents_until(ledger: Ledger, day: int) -> list[tuple[str, int]]:
    newest = ledger.newest(0, day)
    return [
        (one.tiling.gpu, one.tiling.day) for one in ledger.revisions(newest) if one.tiling.entries
    ]


def month_of(day: int) -> tuple[Period, str]:
    """The days from ten before a day to ten after it, as a period and its name."""
    span = Period((day - 10) * DAY_NS, (day + 10) * DAY_NS)
    return span, period_name(span)


def test_no_line_of_a_list_lies_in_the_future(place):
    today = time.time_ns() // DAY_NS
    span, period = month_of(today)
    now = today * DAY_NS // S
    jobs_ = [
        clustercockpit(1, 0, "n1", CAMERA, startTime=now - 86_400),
        clustercockpit(2, 0, "n1", OTHER, startTime=now + 5 * 86_400),
        clustercockpit(3, 0, "n1", OTHER, startTime=now - 86_400, duration=5 * 86_400),
        clustercockpit(4, 0, "n2", OTHER, startTime=now - 86_400, jobState="running"),
    ]
    text = "\n".join(map(json.dumps, jobs_))
    as_of = format_timestamp(span.end_ns)
    found = place.run(text, "--period", period, "--as-of", as_of)
    assert found.exit_code == 0, found.output
    assert "NOT COMPLETE, not imported: 2 lines" in found.output
    assert "  line 2: startTime: " in found.output
    assert "  line 3: duration: the job ends at " in found.output
    assert "expected a time not after now, " in found.output
    last_day = days_of(place)[1]
    assert today <= last_day <= time.time_ns() // DAY_NS
    held_ = place.held()["p"]
    assert 1 + 24 <= held_ <= 1 + 24 + (time.time_ns() - today * DAY_NS) // HOUR + 1


def test_days_after_now_are_not_written_and_those_there_are_withdrawn():
    own = listed("alex", Period(0, 20 * DAY_NS), job(1, "n1/g0", 10, 20))
    ledger = imported(own)
    assert {day for _, day in contents(ledger)} == set(range(20))
    import_list(ledger, own, BY._replace(now_ns=5 * DAY_NS + HOUR))
    assert {day for _, day in contents(ledger)} == set(range(6))
    assert held(ledger) == {"a": 10}


def test_the_claim_of_a_job_ends_where_the_job_does():
    over = job(1, "n1/g0", 60, 80)
    running = job(2, "n1/g1", 60, 72)
    running = msgspec.structs.replace(running, unfinished=True)
    ledger = imported(listed("alex", FIRST, over, running))
    ends = {
        claim.id: claim.end_ns
        for one in ledger.revisions(ledger.newest(2, 3))
        for claim in one.tiling.claims
    }
    assert ends == {f"alex/{over.claim}": None, f"alex/{running.claim}": None}
    import_list(ledger, listed("alex", SECOND, over), BY)
    (claim,) = (
        claim for one in ledger.revisions(ledger.newest(3, 4)) for claim in one.tiling.claims
    )
    assert claim.end_ns == 80 * HOUR


SACCT = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES\n"
RAN = "COMPLETED|1790812800|1790816400"


def sacct_json(count: int) -> str:
    one = {
        "job_id": 1, "account": "a", "user": "u", "nodes": "n1",
        "time": {"start": 1_790_812_800, "end": 1_790_816_400}, "state": {"current": ["COMPLETED"]},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": count}]},
    }  # fmt: skip
    return json.dumps({"jobs": [one]})


def pod(count: int) -> str:
    state = {"terminated": {"finishedAt": "2026-10-01T01:00:00Z"}}
    return json.dumps({
        "kind": "Pod", "metadata": {"name": "a", "namespace": "x", "uid": "1"},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(count)}}}]},
        "status": {"phase": "Succeeded", "startTime": "2026-10-01T00:00:00Z",
                   "containerStatuses": [{"name": "c", "state": state}]},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SACCT}1|u|a|{RAN}|n1|gres/gpu=1025", "line 2: AllocTRES: 1025 GPUs, nodes 1: "),
        (f"{SACCT}1|u|a|{RAN}|n[1-2]|gres/gpu=2049", "line 2: AllocTRES: 2049 GPUs, nodes 2: "),
        (f"{SACCT}1|u|a|{RAN}|n[1-999]|gres/gpu=65537", "expected at most 65536 GPUs"),
        (f"{SACCT}1|u|a|{RAN}|n1|gres/shard=10000", "AllocTRES: 2500 GPUs"),
        (f"{SACCT}1|u|a|{RAN}||gres/gpu={10**15}", "nodes 1: expected at most 1024 GPUs"),
        (sacct_json(1025), "job 1: AllocTRES: 1025 GPUs, nodes 1: "),
        (pod(1025), "pod 1: spec.containers: 1025 GPUs, nodes 1: "),
        (json.dumps(clustercockpit(1, 0, "n1", CAMERA, numAcc=1025)), "line 1: numAcc: 1025 GPUs"),
        ("name,num_gpu,gpu_milli,pod_phase,deletion_time,scheduled_time\na,1025,1000,Succeeded,9,1\n",
         "line 2: num_gpu: '1025' is no whole number below 1025"),
    ],
)  # fmt: skip
def test_a_job_has_no_more_gpus_than_its_nodes_can_have(place, text, message):
    found = place.run(text, *OCTOBER, "--stand-ins", "--shards-per-gpu", "4")
    assert found.exit_code == 1
    assert message in found.output


def test_as_many_gpus_as_nodes_can_have_are_read():
    (found,) = read_jobs(f"{SACCT}1|u|a|{RAN}|n[1-64]|gres/gpu=65536").jobs
    assert [one.gpus for one in found.unplaced] == [65_536]


def test_the_report_of_a_period_is_what_the_ledger_has_of_it(place):
    over = clustercockpit(1, -5, "n1", CAMERA, duration=8 * 3600)
    found = place.run(json.dumps(over), *OCTOBER, "--json")
    assert json.loads(found.stdout)["tenants"][0]["gpu_hours"] == "3:00:00"
    assert place.held() == {"p": 3}


def test_models_of_a_cluster_are_read_from_an_inventory(place):
    inventory = place.directory / "models.csv"
    inventory.write_text(f"node,gpu,model\nn1,,a40\nn1,{OTHER},a100\n")
    jobs_ = [clustercockpit(1, 0, "n1", CAMERA), clustercockpit(2, 0, "n1", OTHER),
             clustercockpit(3, 0, "n2", CAMERA)]  # fmt: skip
    words = ("--inventory", str(inventory), "--sku", "h100")
    assert place.run(json.dumps(jobs_), *OCTOBER, *words).exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    found = {one.tiling.gpu: one.tiling.sku for one in ledger.revisions(ledger.newest(0, 30_000))}
    assert found == {f"n1/{CAMERA}": "a40", f"n1/{OTHER}": "a100", f"n2/{CAMERA}": "h100"}
    inventory.write_text("node,gpu,model\nn1,,a40\nn1,,a100\n")
    refused = place.run(json.dumps(jobs_), *OCTOBER, *words)
    assert refused.exit_code == 1
    assert "line 3: model 'a100': n1 has model 'a40'" in refused.output


def test_slurm_names_models_of_gpus_it_counts(place):
    header = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES"
    row = "1|u|a|COMPLETED|1790812800|1790816400|n1|gres/gpu=3,gres/gpu:a40=1,gres/gpu:a100=2"
    assert place.run(f"{header}\n{row}\n", *OCTOBER, "--stand-ins").exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    found = Counter(one.tiling.sku for one in ledger.revisions(ledger.newest(0, 30_000)))
    assert found == {"a40": 31, "a100": 62}


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 1)])
def test_a_real_cluster_in_two_periods_is_what_its_list_says(place, order):
    text = captured("jobs/clustercockpit-alex-60pct.jsonl").read_text()
    halves = ("2023-02-01..2023-02-14", "2023-02-15..2023-02-28")
    for number in order:
        words = ("--period", halves[number], "--as-of", "2024-01-01", "--stand-ins")
        assert place.run(text, *words).exit_code == 0
    ledger = Ledger.open(place.url, metadata)
    totals = ledger.totals(0, FOREVER_NS).items()
    found = {
        of.tenant: quantity // GPU_CAPACITY
        for of, quantity in totals
        if of.tiling is Tiling.COMPUTE and of.tenant
    }
    ledger.close()
    whole = place.run(text, "--period", "2023-02", "--as-of", "2024-01-01", "--source", "x",
                      "--stand-ins", "--json")  # fmt: skip
    told = {one["tenant"]: int(one["held_ns"]) for one in json.loads(whole.stdout)["tenants"]}
    assert found == {tenant: held_ns for tenant, held_ns in told.items() if held_ns}
