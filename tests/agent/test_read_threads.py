"""Rounds of reads: one thread and one wake-up for those that are due together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from support.sampling import PATIENCE_SECONDS

from railscope_agent.sampling.read_threads import FamilyThread, ReadJob, ReadThreads


def read_threads() -> ReadThreads:
    return ReadThreads(time.monotonic_ns)


def submit(
    threads: ReadThreads, function: Callable[[], object], *, is_prompt: bool = False
) -> ReadJob:
    """Run a function of a family of its own at once."""
    family = FamilyThread(threads, is_prompt)
    family.submit(lambda: function() and None)
    assert family.job
    return family.job


def ident_of(places: list[int]) -> None:
    places.append(threading.get_ident())


async def finish(threads: ReadThreads) -> None:
    await threads.close((), PATIENCE_SECONDS)


async def test_jobs_that_are_due_together_share_a_thread_and_a_wake_up() -> None:
    threads, loop = read_threads(), asyncio.get_running_loop()
    woken: list[object] = []
    wake = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *call: woken.append(call) or wake(*call)  # type: ignore[method-assign,assignment,func-returns-value] # counts wake-ups from threads
    places: list[int] = []
    for _ in range(3):
        jobs = [submit(threads, lambda: ident_of(places)) for _ in range(10)]
        await asyncio.wait([job.future for job in jobs], timeout=PATIENCE_SECONDS)
        assert all(job.future.done() for job in jobs)
    assert (len(places), len(set(places)), len(woken)) == (30, 1, 3)
    assert places[0] != threading.get_ident()
    await finish(threads)


async def test_a_slow_job_delays_the_others_by_a_turn_only() -> None:
    threads, released, places = read_threads(), threading.Event(), list[int]()
    slow = submit(threads, lambda: ident_of(places) if released.wait(PATIENCE_SECONDS) else None)
    others = [submit(threads, lambda: ident_of(places)) for _ in range(3)]
    await asyncio.wait([job.future for job in others], timeout=PATIENCE_SECONDS)
    assert (len(places), slow.future.done()) == (3, False)
    released.set()
    await asyncio.wait([slow.future], timeout=PATIENCE_SECONDS)
    assert len(set(places)) == 2
    await finish(threads)


async def test_a_prompt_job_waits_for_no_turn_and_is_first() -> None:
    threads, released, order = read_threads(), threading.Event(), list[str]()
    slow = submit(threads, lambda: released.wait(PATIENCE_SECONDS) and None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = submit(threads, lambda: order.append("later"))
    prompt = submit(threads, lambda: order.append("prompt"), is_prompt=True)
    await asyncio.wait([prompt.future], timeout=PATIENCE_SECONDS)
    assert order[0] == "prompt"
    released.set()
    await asyncio.wait([slow.future, later.future], timeout=PATIENCE_SECONDS)
    assert order == ["prompt", "later"]
    await finish(threads)


async def test_the_failure_of_a_job_is_its_own() -> None:
    threads = read_threads()

    def fail() -> None:
        raise ZeroDivisionError

    jobs = [submit(threads, function) for function in (fail, lambda: None)]
    await asyncio.wait([job.future for job in jobs], timeout=PATIENCE_SECONDS)
    with pytest.raises(ZeroDivisionError):
        jobs[0].future.result()
    jobs[1].future.result()
    await finish(threads)


async def test_the_jobs_behind_a_stuck_one_run_on_another_thread() -> None:
    threads, released, places = read_threads(), threading.Event(), list[int]()
    stuck = submit(threads, lambda: released.wait(PATIENCE_SECONDS) and None)
    behind = submit(threads, lambda: ident_of(places))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    threads.leave(stuck)
    await asyncio.wait([behind.future], timeout=PATIENCE_SECONDS)
    assert places
    released.set()
    await asyncio.wait([stuck.future], timeout=PATIENCE_SECONDS)
    again = submit(threads, lambda: ident_of(places))
    await asyncio.wait([again.future], timeout=PATIENCE_SECONDS)
    assert places[0] == places[1], "the thread that was left is not used again"
    await finish(threads)


async def test_the_last_function_follows_the_job_that_is_running() -> None:
    threads, released, order = read_threads(), threading.Event(), list[str]()
    running = submit(
        threads, lambda: order.append("job") if released.wait(PATIENCE_SECONDS) else None
    )
    done = submit(threads, lambda: None)
    await asyncio.wait([done.future], timeout=PATIENCE_SECONDS)
    unstarted = submit(threads, lambda: order.append("never"))

    def last_of_others() -> None:
        order.append("others")
        released.set()

    await threads.close(
        [
            (running, lambda: order.append("last")),
            (done, last_of_others),
            (unstarted, lambda: None),
        ],
        PATIENCE_SECONDS,
    )
    assert order == ["others", "job", "last"]


class JumpingClock:
    """A clock that only the functions move."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def read(self) -> int:
        return self.now_ns


async def test_a_prompt_job_that_becomes_due_runs_between_two_others() -> None:
    clock, order = JumpingClock(), list[str]()
    threads = ReadThreads(clock.read)

    def first() -> None:
        order.append("first")
        clock.now_ns = 2_000

    def repeat() -> int | None:
        order.append("prompt")
        return clock.now_ns + 500 if len(order) < 4 else None

    def second() -> None:
        order.append("second")
        clock.now_ns = 3_000

    prompt = FamilyThread(threads, is_prompt=True).submit(repeat, 1_500, is_series=True)
    others = [FamilyThread(threads).submit(function, 1_000) for function in (first, second)]
    await asyncio.wait([prompt, *others], timeout=PATIENCE_SECONDS)
    assert order == ["first", "prompt", "second", "prompt"]
    await finish(threads)


async def test_a_job_that_is_due_earlier_ends_the_wait_for_another() -> None:
    threads, order = read_threads(), list[str]()
    later_ns = time.monotonic_ns() + round(PATIENCE_SECONDS * 1e9)
    later = FamilyThread(threads).submit(lambda: order.append("later"), later_ns)
    started = FamilyThread(threads).submit(lambda: None)
    await asyncio.wait([started], timeout=PATIENCE_SECONDS)
    soon_ns = time.monotonic_ns() + 20_000_000
    soon = FamilyThread(threads).submit(lambda: order.append("soon"), soon_ns)
    await asyncio.wait([soon], timeout=PATIENCE_SECONDS)
    assert time.monotonic_ns() >= soon_ns, "no job runs early"
    assert (order, later.done()) == (["soon"], False)
    await finish(threads)
    assert order == ["soon"], "a job that was not started is dropped"


async def test_a_stuck_job_does_not_delay_a_repeating_one() -> None:
    threads, released, ticks = read_threads(), threading.Event(), list[int]()

    def tick() -> int | None:
        ticks.append(threading.get_ident())
        return time.monotonic_ns() + 10_000_000 if len(ticks) < 20 else None

    series = FamilyThread(threads, is_prompt=True).submit(tick, is_series=True)
    stuck = submit(threads, lambda: released.wait(PATIENCE_SECONDS) and None)
    await asyncio.wait([series], timeout=PATIENCE_SECONDS)
    assert (len(ticks), stuck.future.done()) == (20, False)
    released.set()
    await asyncio.wait([stuck.future], timeout=PATIENCE_SECONDS)
    await finish(threads)
