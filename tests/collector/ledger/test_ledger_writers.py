"""Several collectors write one ledger at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from days import DAY, held, metered
from support.metered import revision_of, sizes_of_day, write_day

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

WRITERS = 6
ROUNDS = 5


def written_by(url, barrier, days):
    """Write days one after another, at the same moment as the other writers."""
    try:
        ledger = Ledger.open(url, metadata)
        found = []
        for day in days:
            barrier.wait()
            found.append(write_day(ledger, day))
    except BaseException:
        barrier.abort()  # or the others would wait for this one
        raise
    ledger.close()
    return found


def write_at_once(url, days):
    """Each writer, with a ledger of its own, writes its days."""
    barrier = Barrier(len(days))
    with ThreadPoolExecutor(len(days)) as pool:
        return list(pool.map(lambda mine: written_by(url, barrier, mine), days))


def test_different_days_written_at_once_are_revisions_of_their_own(empty_url):
    days = [
        [metered(held("GPU-0", f"tenant-{writer}-{turn}")) for turn in range(ROUNDS)]
        for writer in range(WRITERS)
    ]
    results = write_at_once(empty_url, days)
    numbers = sorted(written.revision for mine in results for written in mine)
    assert numbers == list(range(1, WRITERS * ROUNDS + 1))
    ledger = Ledger.open(empty_url, metadata)
    for mine, theirs in zip(days, results, strict=True):
        for day, written in zip(mine, theirs, strict=True):
            assert written.added
            found = revision_of(ledger, "GPU-0", DAY, written.revision)
            assert found.day == day
    ledger.close()


def test_the_same_day_written_at_once_is_one_revision(url):
    turns = [metered(held("GPU-0", f"tenant-{turn}")) for turn in range(ROUNDS)]
    results = write_at_once(url, [turns] * WRITERS)
    for number, at_once in enumerate(zip(*results, strict=True), 1):
        assert {written.revision for written in at_once} == {number}
        assert [written.added for written in at_once].count(True) == 1
    ledger = Ledger.open(url, metadata)
    assert revision_of(ledger, "GPU-0", DAY).number == ROUNDS
    ledger.close()


@pytest.mark.thorough
def test_a_reader_sees_revisions_whole_while_they_are_written(url):
    red, green = (metered(held("GPU-0", *names)) for names in ([""] * 20 + ["red"], ["green"]))
    ledger = Ledger.open(url, metadata)
    write_day(ledger, red)
    whole = GPU_CAPACITY * DAY_NS

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [write_day(ledger, day) for day in (green, red) * 20])
        reads = 0
        while not writing.done() or not reads:
            assert set(sizes_of_day(ledger, DAY).values()) == {whole}
            assert revision_of(ledger, "GPU-0", DAY).day in (red, green)
            reads += 1
        writing.result()
    ledger.close()


KILLED = """
import os, sys
sys.path[:0] = {directories!r}
from days import held, metered
from sqlalchemy import event
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

def die(connection, cursor, statement, *_rest):
    if statement.startswith("INSERT INTO ledger_day"):
        os._exit(9)

database = Database({url!r}, metadata)
event.listen(database.engine, "after_cursor_execute", die)
Ledger(database).write_days([metered(held("GPU-0", "red"))], 0)
"""


def test_a_writer_that_ends_in_the_middle_leaves_nothing(url, request):
    tests = request.config.rootpath / "tests"
    script = KILLED.format(directories=[str(request.path.parent), str(tests)], url=url)
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == 9, ended.stderr
    ledger = Ledger.open(url, metadata)
    assert revision_of(ledger, "GPU-0", DAY) is None
    assert write_day(ledger, metered(held("GPU-0", "red"))).revision == 1
    ledger.close()
