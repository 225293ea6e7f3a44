"""Threads of reads: reads that are due at the same time share one thread and one wake-up.

Waking a thread costs as much as reading a hundred counters, and concurrent threads contend for the
interpreter lock at every system call. So the reads of all families that are due together form a round: they
run sequentially on one thread, which reports once, at the end. A round that takes longer than a turn is
divided: the read that is running keeps its thread, and those behind it continue on another one. A series of
reads, which lasts about a second, has a round of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from agent.sampling.hang_guard import DeviceThread

TURN_SECONDS = 0.05
PROMPT_TURN_SECONDS = 0.01
"""Turn of a round with prompt reads: the next ones would be late."""


@dataclass(slots=True, eq=False)
class _ReadJob:
    """One function of a round, and its result."""

    function: Callable[[], None]
    is_prompt: bool
    future: asyncio.Future[None]
    round: _ReadRound | None = None
    """None until it is started."""


class _ReadRound:
    """Jobs that run one after the other on one thread."""

    def __init__(self, jobs: Sequence[_ReadJob], thread: DeviceThread) -> None:
        self.thread = thread
        self.waiting = deque(jobs)
        self.timer: asyncio.TimerHandle | None = None
        self._done: deque[tuple[_ReadJob, Exception | None]] = deque()
        for job in jobs:
            job.round = self

    def run(self) -> None:
        """Run the jobs on the thread of this round."""
        while (job := self.take()) is not None:
            try:
                job.function()
            except Exception as error:  # noqa: BLE001 - passed to the future
                self._done.append((job, error))
            else:
                self._done.append((job, None))

    def take(self) -> _ReadJob | None:
        """Remove the next job: `deque.popleft` returns each job in one thread only."""
        with suppress(IndexError):
            return self.waiting.popleft()
        return None

    def take_all(self) -> list[_ReadJob]:
        """Remove all jobs that have not been started."""
        jobs = list(iter(self.take, None))
        for job in jobs:
            job.round = None
        return jobs

    def deliver(self) -> None:
        """Pass the results so far to the futures."""
        while self._done:
            job, error = self._done.popleft()
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(None)
            else:
                job.future.set_exception(error)


class ReadThreads:
    """Runs the reads of several families; used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: list[_ReadJob] = []
        self._spare: list[DeviceThread] = []
        self._rounds: set[_ReadRound] = set()
        self._turn: _ReadRound | None = None
        """Round for which other reads wait, unless they are prompt."""

    def submit(
        self, function: Callable[[], None], *, is_prompt: bool = False, is_series: bool = False
    ) -> _ReadJob:
        """Run a function in the next round. Prompt ones wait for no other round, a series has its own."""
        loop = asyncio.get_running_loop()
        job = _ReadJob(function, is_prompt, loop.create_future())
        if is_series:
            self._start_round([job])
            return job
        self._waiting.append(job)
        loop.call_soon(self._start)  # after all tasks that are due now have submitted theirs
        return job

    def leave(self, job: _ReadJob) -> None:
        """Continue without the thread of a job, which is stuck; it ends if the job ever returns."""
        if job.round:
            self._divide(job.round)
            self._rounds.discard(job.round)
            job.round.thread.stop()

    async def close(
        self, last: Sequence[tuple[_ReadJob | None, Callable[[], None]]], seconds: float
    ) -> None:
        """Run last functions, each after a job, and let the threads end.

        Jobs that were not started are dropped. A stuck thread is not waited for: it runs the last function
        of its job if it ever returns.
        """
        self._waiting.clear()
        for read_round in self._rounds:
            read_round.take_all()
        common = self._spare.pop() if self._spare else DeviceThread("reads")
        threads = {common, *self._spare, *(read_round.thread for read_round in self._rounds)}
        closing = []
        for job, function in last:
            running = job.round if job and job.round in self._rounds else None
            closing.append((running.thread if running else common).submit(function))
        for thread in threads:
            thread.stop()
        if closing:
            await asyncio.wait(closing, timeout=seconds)

    def _start(self) -> None:
        """Start a round of the waiting jobs; only of prompt ones during the turn of another round."""
        jobs = [job for job in self._waiting if job.is_prompt or not self._turn]
        self._waiting = [job for job in self._waiting if job not in jobs]
        if not jobs:
            return
        started = self._start_round(sorted(jobs, key=lambda job: not job.is_prompt))
        self._turn = self._turn or started
        has_prompt_jobs = any(job.is_prompt for job in jobs)
        seconds = PROMPT_TURN_SECONDS if has_prompt_jobs else TURN_SECONDS
        started.timer = asyncio.get_running_loop().call_later(seconds, self._divide, started)

    def _start_round(self, jobs: Sequence[_ReadJob]) -> _ReadRound:
        started = _ReadRound(jobs, self._spare.pop() if self._spare else DeviceThread("reads"))
        self._rounds.add(started)
        started.thread.run(started.run, partial(self._finish, started))
        return started

    def _divide(self, running: _ReadRound) -> None:
        """Hand the remaining jobs of a round to another round."""
        self._waiting[:0] = running.take_all()
        running.deliver()
        self._end_turn(running)

    def _finish(self, finished: _ReadRound) -> None:
        finished.deliver()
        if finished in self._rounds:
            self._rounds.discard(finished)
            self._spare.append(finished.thread)
        self._end_turn(finished)

    def _end_turn(self, of: _ReadRound) -> None:
        if of.timer:
            of.timer.cancel()
        if self._turn is of:
            self._turn = None
        if self._waiting:
            self._start()


@dataclass(slots=True)
class FamilyThread:
    """The thread on which the reads of one family run, never two at once."""

    threads: ReadThreads
    is_prompt: bool = False
    job: _ReadJob | None = field(default=None, init=False)

    def submit(
        self, function: Callable[[], None], *, is_series: bool = False
    ) -> asyncio.Future[None]:
        """Run a function and return the future of its end."""
        self.job = self.threads.submit(function, is_prompt=self.is_prompt, is_series=is_series)
        return self.job.future

    def replace(self) -> None:
        """Continue with another thread than that of the last function, which is stuck."""
        if self.job:
            self.threads.leave(self.job)
            self.job = None
