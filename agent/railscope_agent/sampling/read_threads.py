"""Threads of reads: one thread waits for the times of all reads, runs those that are due, and reports them.

Waking a thread costs as much as reading a hundred counters, and concurrent threads contend for the
interpreter lock at every system call. So the event loop plans the next reads of all families, and the leading
thread waits for them: those that are due at one time run sequentially with one wake-up of the thread, and one
of the event loop, when all of them have ended. A function that repeats, such as burst sampling, wakes the event
loop only when it has ended.

A read that takes longer than a turn keeps its thread, and another thread leads: it continues with the reads
behind it. Prompt reads are first, and also run between two others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from railscope.timestamps import SECOND_NS
from railscope_agent.sampling.worker_thread import CallAbandonedError, WorkerThread

TURN_SECONDS = 0.05
MIN_TURN_SECONDS = 0.01
PROMPT_SECONDS = 0.5
"""Sources with a shorter period do not wait for others: windows would end late, or be missed."""
# Far beyond any time of the boot clock, and still an integer of 64 bits when a period is added.
NEVER_NS = 1 << 62
AT_ONCE_NS = 0


@dataclass(slots=True, eq=False)
class ReadJob:
    """A function of a family, and the time at which it is due."""

    function: Callable[[], int | None]
    """Returns the time of its next run, or None when it has ended."""
    due_ns: int
    period_ns: int
    """Time from there to the next job of the family, for which the thread wakes without a signal."""
    family: FamilyThread
    future: asyncio.Future[None]
    is_series: bool = False
    """True if the function may repeat."""
    error: Exception | None = None
    thread: _ReadThread | None = None
    """Thread that runs it now."""


class _ReadThread:
    """One thread; the leading one waits for planned jobs, the others end a slow job, or wait to lead."""

    def __init__(self, threads: ReadThreads) -> None:
        self.job: ReadJob | None = None
        self.started = 0.0
        """Start of the job, on the monotonic clock."""
        self.finished: list[ReadJob] = []
        """Jobs that have ended and were not reported yet."""
        self.is_stopped = False
        self.last: list[Callable[[], None]] = []
        """Functions to run at the end."""
        self._threads = threads
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        # A daemon: a call that never returns must not keep the process from ending.
        threading.Thread(target=self._work, name="reads", daemon=True).start()

    def signal(self) -> None:
        """End the wait of the thread."""
        self._signals.put(None)

    def _work(self) -> None:
        with suppress(CallAbandonedError):  # the family has another thread
            while not self.is_stopped:
                job = self._threads.take(self)
                if job:
                    self._run(job)
                    continue
                # Reported before the thread waits, not after each job: jobs that are due together cost one
                # wake-up of the loop.
                self._threads.report(self)
                with suppress(queue.Empty):
                    self._signals.get(timeout=self._threads.seconds_to_wait(self))
        # Also after an abandoned call: the source may be closed only when its last call has returned.
        for function in self.last:
            function()

    def _run(self, job: ReadJob) -> None:
        following_ns: int | None = None
        try:
            following_ns = job.function()
        except Exception as error:  # noqa: BLE001 - passed to the future
            # CallAbandonedError is a BaseException and passes: its job has been given up, and the thread
            # ends.
            job.error = error
        self._threads.end(self, job, following_ns)


class ReadThreads:
    """Runs the reads of several families, at times of a clock."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._submitted: list[ReadJob] = []
        """Jobs of this iteration of the event loop: they are planned together."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        """Protects all below, and the state of the threads."""
        self._planned: list[ReadJob] = []
        self._leader: _ReadThread | None = None
        self._leader_wakes_ns = AT_ONCE_NS
        """Time until which the leading thread waits; a time in the past while it runs jobs."""
        self._spare: list[_ReadThread] = []
        self._threads: list[_ReadThread] = []

    # On the event loop ------------------------------------------------------------------------

    def submit(self, job: ReadJob) -> None:
        """Plan a job; one that is due already runs after all tasks that are due now have submitted theirs."""
        if not self._submitted:
            self._loop.call_soon(self._plan_submitted)
        self._submitted.append(job)

    def leave(self, job: ReadJob) -> None:
        """Continue without the thread of a job, which is stuck; it ends if the job ever returns."""
        with self._lock:
            if (stuck := job.thread) is None:
                return
            # It ends when its call returns: another thread has taken its place by then.
            stuck.is_stopped = True
            finished = self._hand_over(stuck)
        self._deliver(finished)

    async def close(
        self, last: Sequence[tuple[ReadJob | None, Callable[[], None]]], seconds: float
    ) -> None:
        """Run last functions, each after a job, and let the threads end.

        Jobs that were not started are dropped. A stuck thread is not waited for: it runs the last function
        of its job if it ever returns.
        """
        # Threads report jobs until they have stopped: the flag keeps these reports from starting the timer
        # again.
        self._is_closed = True
        self._submitted.clear()
        if self._timer:
            self._timer.cancel()
        common, ends = WorkerThread("reads"), list[asyncio.Future[None]]()
        with self._lock:
            self._planned.clear()
            for job, function in last:
                running = job.thread if job and job.thread in self._threads else None
                # A thread that is not in a call of this family will not run its last function soon: a common
                # one does.
                if running is None or running.is_stopped:
                    ends.append(common.submit(function))
                else:
                    ends.append(self._add_last(running, function))
            for thread in self._threads:
                thread.is_stopped = True
                thread.signal()
        common.stop()
        if ends:
            await asyncio.wait(ends, timeout=seconds)

    def _add_last(self, running: _ReadThread, function: Callable[[], None]) -> asyncio.Future[None]:
        end = self._loop.create_future()

        def run() -> None:
            function()
            self._call_loop(end.set_result, None)

        running.last.append(run)
        return end

    def _plan_submitted(self) -> None:
        submitted, self._submitted = self._submitted, []
        if not submitted:
            return
        with self._lock:
            if self._leader is None:
                self._appoint()
            for job in submitted:
                self._plan(job)
        self._watch()

    def _watch(self, from_ns: int = 0) -> None:
        """Check the leading thread a turn after the next reads; they have usually ended by then."""
        with self._lock:
            running = self._leader.job if self._leader else None
            jobs = [*self._planned, *([running] if running else [])]
            # A series runs a second by design: it is no reason to appoint another thread.
            dues = [job.due_ns for job in jobs if not job.is_series]
            turn = min((job.family.turn_seconds for job in jobs), default=TURN_SECONDS)
        if self._timer:
            self._timer.cancel()
        if dues and not self._is_closed:
            # Times in the past would make a check that finds a slow job repeat without a pause.
            wait_ns = max(min(dues), from_ns) - self._now_ns()
            self._timer = self._loop.call_later(
                max(wait_ns / SECOND_NS, 0) + turn, self._check, turn
            )

    def _check(self, turn_seconds: float) -> None:
        """Deliver what has ended; appoint another leading thread if a job takes longer than a turn."""
        finished = list[ReadJob]()
        with self._lock:
            if leader := self._leader:
                finished, leader.finished = leader.finished, []
                if leader.job and time.monotonic() - leader.started >= turn_seconds:
                    self._hand_over(leader)
        self._deliver(finished)
        self._watch(self._now_ns())

    def _end_round(self, finished: Sequence[ReadJob]) -> None:
        self._deliver(finished)
        self._watch()  # otherwise the check after these reads would be a wake-up without work

    def _deliver(self, finished: Sequence[ReadJob]) -> None:
        for job in finished:
            # The waiting task was cancelled.
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(None)
            else:
                job.future.set_exception(job.error)

    # On the threads of reads --------------------------------------------------------------------

    def take(self, thread: _ReadThread) -> ReadJob | None:
        """Return the next job that is due; None if a thread has to wait."""
        with self._lock:
            if thread is not self._leader:
                # A thread that has lost the lead is kept for the next slow job: starting one costs more than
                # keeping it.
                if not thread.is_stopped and thread not in self._spare:
                    self._spare.append(thread)
                return None
            now_ns = self._now_ns()
            due = [job for job in self._planned if job.due_ns <= now_ns]
            if due:
                # The first prompt job, or else the first: min keeps the order of submission among equals.
                job = min(due, key=lambda job: not job.family.is_prompt)
                self._planned.remove(job)
                job.thread, thread.job, thread.started = thread, job, time.monotonic()
                self._leader_wakes_ns = AT_ONCE_NS
                return job
            times = [job.due_ns for job in self._planned]
            # The families of these jobs submit again at these times: the thread is awake then without a
            # signal.
            times += [job.due_ns + job.period_ns for job in thread.finished]
            self._leader_wakes_ns = min((t for t in times if t > now_ns), default=NEVER_NS)
            return None

    def end(self, thread: _ReadThread, job: ReadJob, following_ns: int | None) -> None:
        """Record the end of one run of a job."""
        with self._lock:
            thread.job = job.thread = None
            if following_ns is None:
                thread.finished.append(job)
            else:
                job.due_ns = following_ns
                self._plan(job)

    def report(self, thread: _ReadThread) -> None:
        """Report the finished jobs of a thread to the event loop, with one wake-up."""
        with self._lock:
            finished, thread.finished = thread.finished, []
        if finished:
            self._call_loop(self._end_round, finished)

    def seconds_to_wait(self, thread: _ReadThread) -> float | None:
        """Return the duration of the wait of a thread; None if it waits for a signal only."""
        with self._lock:
            wakes_ns = self._leader_wakes_ns if thread is self._leader else NEVER_NS
        return None if wakes_ns == NEVER_NS else max(wakes_ns - self._now_ns(), 0) / SECOND_NS

    def _call_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        # The loop may have ended while the thread was stuck; then the result is not awaited.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # With the lock --------------------------------------------------------------------------------

    def _plan(self, job: ReadJob) -> None:
        self._planned.append(job)
        wakes_ns = self._leader_wakes_ns
        # A leader that runs jobs looks at the plan afterwards anyway: a signal would cost a wake-up for
        # nothing.
        if wakes_ns != AT_ONCE_NS and (job.due_ns < wakes_ns or job.due_ns <= self._now_ns()):
            self._leader_wakes_ns = job.due_ns
            if self._leader:
                self._leader.signal()

    def _appoint(self) -> None:
        if self._spare:
            self._leader = self._spare.pop()
        else:
            self._leader = _ReadThread(self)
            self._threads.append(self._leader)
        self._leader_wakes_ns = AT_ONCE_NS
        self._leader.signal()

    def _hand_over(self, busy: _ReadThread) -> list[ReadJob]:
        """Appoint another thread if this one leads; return its finished jobs."""
        # A stuck thread is no longer waited for when the sampler closes.
        if busy.is_stopped and busy in self._threads:
            self._threads.remove(busy)
        if busy is self._leader:
            self._appoint()
        finished, busy.finished = busy.finished, []
        return finished


@dataclass(slots=True)
class FamilyThread:
    """The thread on which the reads of one family run, never two at once."""

    threads: ReadThreads
    is_prompt: bool = False
    turn_seconds: float = TURN_SECONDS
    """Duration of another family's read that may delay those of this family."""
    job: ReadJob | None = field(default=None, init=False)

    def limit_delay(self, period_seconds: float) -> None:
        """Adapt to the period of a source of this family."""
        self.is_prompt |= period_seconds < PROMPT_SECONDS
        self.turn_seconds = min(self.turn_seconds, max(period_seconds / 2, MIN_TURN_SECONDS))

    def submit(
        self,
        function: Callable[[], int | None],
        due_ns: int = AT_ONCE_NS,
        period_ns: int = NEVER_NS,
        *,
        is_series: bool = False,
    ) -> asyncio.Future[None]:
        """Run a function at a time, again at each time that it returns, and return the future of its end."""
        future = asyncio.get_running_loop().create_future()
        self.job = ReadJob(function, due_ns, period_ns, self, future, is_series)
        self.threads.submit(self.job)
        return future

    def replace(self) -> None:
        """Continue with another thread than that of the last function, which is stuck."""
        if self.job:
            self.threads.leave(self.job)
            self.job = None
