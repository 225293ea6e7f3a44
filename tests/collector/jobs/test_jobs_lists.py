"""Job lists by source and period: additive, corrected, in any order, one ledger."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, strategies as st
from support.examples import fewer_examples
from support.job_lists import GPU_1, GPU_2, HOUR, tenant_hours

from railscope.audit.record import RecordActor
from railscope.timestamps import DAY_NS
from railscope_collector.jobs import imported_lists
from railscope_collector.jobs.gpu_models import GpuModels
from railscope_collector.jobs.imported_lists import NewList, PlacedJob
from railscope_collector.jobs.job_list import JobList, ListedGpu, ListedJob
from railscope_collector.jobs.job_list_import import import_list, place_jobs
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
    return {one.key: one.root for one in ledger.revisions(newest) if one.day.pieces}


def test_a_job_over_the_edge_of_two_periods_is_one_claim():
    over = job(7, "n1/g0", 70, 75)
    ledger = imported(listed("alex", SECOND, over), listed("alex", FIRST, over))
    assert tenant_hours(ledger) == {"a": 5}
    days = [one.day for one in ledger.revisions(ledger.newest(0, 6))]
    (claim,) = {claim.id for day in days for claim in day.claims}
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
