"""Job lists by source and period: additive, corrected, in any order, one ledger."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import msgspec
import pytest
from hypothesis import given, strategies as st
from sqlalchemy import select
from support.examples import fewer_examples
from support.job_lists import GPU_1, GPU_2, HOUR, tenant_hours

from railscope.audit.record import RecordActor
from railscope.timestamps import DAY_NS
from railscope_collector.jobs import imported_lists
from railscope_collector.jobs.gpu_models import GpuModels
from railscope_collector.jobs.imported_lists import JobLedgerError, NewList, PlacedJob
from railscope_collector.jobs.job_list import JobList, ListedGpu, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_import import ImportCounts, import_list, place_jobs
from railscope_collector.jobs.placeholder_gpus import number_placeholders
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata

BY = TimedActor(RecordActor("operator", "op", "test"), 100 * DAY_NS)
FIRST, SECOND = Period(0, 3 * DAY_NS), Period(3 * DAY_NS, 6 * DAY_NS)


def job(  # noqa: PLR0913, PLR0917 - in the order in which a list has them
    number: object, gpu: str, start_hours: int, end_hours: int, tenant: str = "a", model: str = ""
) -> PlacedJob:
    return PlacedJob(
        gpu, start_hours * HOUR, str(number), tenant, end_hours * HOUR, gpu.partition("/")[0], model
    )


def listed(source: str, period: Period, *jobs: PlacedJob) -> NewList:
    """A list of the jobs that have time in a period."""
    own = [job for job in jobs if job.start_ns < period.end_ns and job.end_ns > period.start_ns]
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


A1 = job(1, "n1/g0", 10, 20)
B1 = job(1, "m1/g0", 5, 9, "b")


def test_a_list_of_another_source_leaves_what_is_there():
    ledger = imported(listed("alex", FIRST, A1))
    before = contents(ledger)
    import_list(ledger, listed("fritz", FIRST, B1), BY)
    after = contents(ledger)
    assert {key: after[key] for key in before} == before
    assert tenant_hours(ledger) == {"a": 10, "b": 4}


def test_a_later_period_changes_no_gpu_that_it_does_not_name():
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
    assert tenant_hours(ledger) == {"a": 20, "b": 4, "c": 1}
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
    assert tenant_hours(ledger) == {"a": 10}
    import_list(ledger, overlapping._replace(source="fritz"), BY)


def test_two_models_of_one_gpu_are_an_error_and_change_nothing():
    ledger = imported(listed("alex", FIRST, job(1, "n1/g0", 1, 2, model="a40")))
    before = contents(ledger)
    with pytest.raises(JobLedgerError, match="models of n1/g0: a100 and a40"):
        import_list(ledger, listed("fritz", FIRST, job(2, "n1/g0", 3, 4, model="a100")), BY)
    assert contents(ledger) == before
    assert [job_list.source for job_list in imported_lists.newest_lists(ledger.database)] == [
        "alex"
    ]


def test_a_job_over_the_edge_of_two_periods_is_one_claim():
    over = job(7, "n1/g0", 70, 75)
    ledger = imported(listed("alex", SECOND, over), listed("alex", FIRST, over))
    assert tenant_hours(ledger) == {"a": 5}
    (claim,) = {entry.claim for entry in ledger.entries(0, 6 * DAY_NS) if entry.claim}
    assert claim == f"alex/7@{70 * 3600}"


jobs = st.builds(
    job,
    st.integers(1, 5),
    st.sampled_from(["n1/g0", "n1/g1", "n2/g0"]),
    st.integers(0, 143),
    st.integers(0, 150),
    st.sampled_from("abc"),
).filter(lambda one: one.start_ns < one.end_ns)
versions = st.lists(
    st.tuples(
        st.sampled_from(["alex", "fritz"]),
        st.sampled_from([FIRST, SECOND]),
        st.lists(jobs, max_size=4, unique_by=lambda one: (one.claim, one.gpu)),
    ),
    min_size=1,
    max_size=5,
)


@fewer_examples(40)
@given(versions, st.randoms(use_true_random=False))
def test_p26_imports_in_any_order_and_repetition_give_one_ledger(found, random):
    newest = {(source, period): own for source, period, own in found}
    fresh = [listed(source, period, *own) for (source, period), own in newest.items()]
    random.shuffle(fresh)
    history = [listed(source, period, *own) for source, period, own in found]
    once, corrected = imported(*fresh), imported(*history)
    again = imported(*fresh, *reversed(fresh), *fresh)
    assert contents(once) == contents(corrected) == contents(again)


@fewer_examples(30)
@given(versions, versions)
def test_p26_a_list_changes_no_gpu_of_other_sources_or_periods(found, more):
    ledger = imported(*(listed(source, period, *own) for source, period, own in found))
    source, period, own = more[0]
    before = contents(ledger)
    import_list(ledger, one := listed(source, period, *own), BY)
    after = contents(ledger)
    with ledger.database.transaction() as connection:
        touched = imported_lists.find_listed_gpus(connection, source, period)
    days = range(one.period.start_ns // DAY_NS, one.period.end_ns // DAY_NS)
    for key in before.keys() | after.keys():
        if key[0] not in touched or key[1] not in days:
            assert before.get(key) == after.get(key)


def counted(number: int, tenant: str, node: str, gpus: int, model: str = "") -> ListedJob:
    return ListedJob(
        number * HOUR,
        str(number),
        tenant,
        "u",
        (number + 10) * HOUR,
        unplaced=(UnnamedGpus(node, gpus, "counted", model),),
    )


def test_models_come_from_the_inventory_by_gpu_by_node_the_list_and_then_the_default():
    gpus = [
        ListedGpu("n1", GPU_1),
        ListedGpu("n1", GPU_2),
        ListedGpu("n2", GPU_1),
        ListedGpu("n3", GPU_1),
    ]
    models = GpuModels({gpus[0]: "own"}, {"n1": "of-n1"}, "default")
    found = place_jobs(
        JobList(
            (
                ListedJob(0, "1", "a", "u", HOUR, (gpus[0], gpus[1], gpus[3])),
                ListedJob(0, "2", "a", "u", HOUR, (gpus[0], gpus[2]), model="listed"),
            )
        ),
        models,
    )
    assert {one.gpu: one.model for one in found} == {
        f"n1/{GPU_1}": "own", f"n1/{GPU_2}": "of-n1", f"n2/{GPU_1}": "listed",
        f"n3/{GPU_1}": "default",
    }  # fmt: skip


def test_a_list_that_names_two_models_of_one_gpu_is_rejected():
    gpu = (ListedGpu("n1", GPU_1),)
    two = (
        ListedJob(0, "1", "a", "u", HOUR, gpu, model="a40"),
        ListedJob(0, "2", "a", "u", 1, gpu, model="x"),
    )
    with pytest.raises(JobLedgerError, match=f"models of n1/{GPU_1}: a40 and x"):
        place_jobs(JobList(two), GpuModels())


def test_stand_ins_are_named_by_source_node_model_and_number():
    jobs_ = [
        counted(0, "a", "n1", 2, "a40"),
        counted(1, "b", "n1", 1, "a100"),
        counted(2, "c", "n[1-2]", 1),
        counted(20, "d", "n1", 1, "a40"),
    ]
    found = number_placeholders(jobs_, "alex", GpuModels(by_node={"n9": "x"}))
    assert [[str(gpu) for gpu in job.gpus] for job in found.jobs] == [
        ["n1/alex:a40:000001", "n1/alex:a40:000002"],
        ["n1/alex:a100:000001"],
        ["unnamed/alex:000001"],
        ["n1/alex:a40:000001"],
    ]
    assert set(found.models.values()) == {"a40", "a100", ""}


def test_the_order_of_jobs_does_not_change_stand_ins():
    jobs_ = [counted(number, "a", "n1", 1) for number in range(4)]
    named = [str(job.gpus) for job in number_placeholders(jobs_, "s", GpuModels()).jobs]
    for other in permutations(jobs_):
        assert [str(job.gpus) for job in number_placeholders(other, "s", GpuModels()).jobs] == named


def test_days_after_now_are_not_written_and_those_there_are_withdrawn():
    own = listed("alex", Period(0, 20 * DAY_NS), job(1, "n1/g0", 10, 20))
    ledger = imported(own)
    assert {day for _, day in contents(ledger)} == set(range(20))
    import_list(ledger, own, BY._replace(now_ns=5 * DAY_NS + HOUR))
    assert {day for _, day in contents(ledger)} == set(range(6))
    assert tenant_hours(ledger) == {"a": 10}


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
