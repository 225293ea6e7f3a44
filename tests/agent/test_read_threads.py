"""Rounds of reads: one thread and one wake-up for those that are due together."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.sampling import PATIENCE_SECONDS

from agent.sampling.read_threads import ReadThreads


def ident_of(places: list[int]) -> None:
    places.append(threading.get_ident())


async def finish(threads: ReadThreads) -> None:
    await threads.close((), PATIENCE_SECONDS)


async def test_jobs_that_are_due_together_share_a_thread_and_a_wake_up() -> None:
    threads, loop = ReadThreads(), asyncio.get_running_loop()
    woken: list[object] = []
    wake = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *call: woken.append(call) or wake(*call)  # type: ignore[method-assign,assignment,func-returns-value] # counts wake-ups from threads
    places: list[int] = []
    for _ in range(3):
        jobs = [threads.submit(lambda: ident_of(places)) for _ in range(10)]
        await asyncio.wait([job.future for job in jobs], timeout=PATIENCE_SECONDS)
        assert all(job.future.done() for job in jobs)
    assert (len(places), len(set(places)), len(woken)) == (30, 1, 3)
    assert places[0] != threading.get_ident()
    await finish(threads)


async def test_a_slow_job_delays_the_others_by_a_turn_only() -> None:
    threads, released, places = ReadThreads(), threading.Event(), list[int]()
    slow = threads.submit(lambda: ident_of(places) if released.wait(PATIENCE_SECONDS) else None)
    others = [threads.submit(lambda: ident_of(places)) for _ in range(3)]
    await asyncio.wait([job.future for job in others], timeout=PATIENCE_SECONDS)
    assert (len(places), slow.future.done()) == (3, False)
    released.set()
    await asyncio.wait([slow.future], timeout=PATIENCE_SECONDS)
    assert len(set(places)) == 2
    await finish(threads)


async def test_a_prompt_job_waits_for_no_turn_and_is_first() -> None:
    threads, released, order = ReadThreads(), threading.Event(), list[str]()
    slow = threads.submit(lambda: released.wait(PATIENCE_SECONDS) and None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = threads.submit(lambda: order.append("later"))
    prompt = threads.submit(lambda: order.append("prompt"), is_prompt=True)
    await asyncio.wait([prompt.future], timeout=PATIENCE_SECONDS)
    assert order[0] == "prompt"
    released.set()
    await asyncio.wait([slow.future, later.future], timeout=PATIENCE_SECONDS)
    assert order == ["prompt", "later"]
    await finish(threads)


async def test_the_failure_of_a_job_is_its_own() -> None:
    threads = ReadThreads()

    def fail() -> None:
        raise ZeroDivisionError

    jobs = [threads.submit(function) for function in (fail, lambda: None)]
    await asyncio.wait([job.future for job in jobs], timeout=PATIENCE_SECONDS)
    with pytest.raises(ZeroDivisionError):
        jobs[0].future.result()
    jobs[1].future.result()
    await finish(threads)


async def test_the_jobs_behind_a_stuck_one_run_on_another_thread() -> None:
    threads, released, places = ReadThreads(), threading.Event(), list[int]()
    stuck = threads.submit(lambda: released.wait(PATIENCE_SECONDS) and None)
    behind = threads.submit(lambda: ident_of(places))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    threads.leave(stuck)
    await asyncio.wait([behind.future], timeout=PATIENCE_SECONDS)
    assert places
    released.set()
    await asyncio.wait([stuck.future], timeout=PATIENCE_SECONDS)
    again = threads.submit(lambda: ident_of(places))
    await asyncio.wait([again.future], timeout=PATIENCE_SECONDS)
    assert places[0] == places[1], "the thread that was left is not used again"
    await finish(threads)


async def test_the_last_function_follows_the_job_that_is_running() -> None:
    threads, released, order = ReadThreads(), threading.Event(), list[str]()
    running = threads.submit(
        lambda: order.append("job") if released.wait(PATIENCE_SECONDS) else None
    )
    done = threads.submit(lambda: None)
    await asyncio.wait([done.future], timeout=PATIENCE_SECONDS)
    unstarted = threads.submit(lambda: order.append("never"))

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
