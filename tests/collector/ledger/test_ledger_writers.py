"""Several collectors write one ledger at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from days import DAY, held, metered
from support.metered import revision_of, sizes_of_day

from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import Tiling
from railscope_collector.tables import metadata

WRITERS = 6
ROUNDS = 5


def written_by(url, barrier, tilings):
    """Write tilings one after another, at the same moment as the other writers."""
    try:
        ledger = Ledger.open(url, metadata)
        found = []
        for tiling in tilings:
            barrier.wait()
            found.append(ledger.write(tiling))
    except BaseException:
        barrier.abort()  # or the others would wait for this one
        raise
    ledger.close()
    return found


def write_at_once(url, tilings):
    """Each writer, with a ledger of its own, writes its tilings."""
    barrier = Barrier(len(tilings))
    with ThreadPoolExecutor(len(tilings)) as pool:
        return list(pool.map(lambda mine: written_by(url, barrier, mine), tilings))


def test_different_tilings_written_at_once_are_revisions_of_their_own(empty_url):
    tilings = [
        [metered(held("GPU-0", f"tenant-{writer}-{turn}")) for turn in range(ROUNDS)]
        for writer in range(WRITERS)
    ]
    results = write_at_once(empty_url, tilings)
    numbers = sorted(written.revision for mine in results for written in mine)
    assert numbers == list(range(1, WRITERS * ROUNDS + 1))
    ledger = Ledger.open(empty_url, metadata)
    for mine, theirs in zip(tilings, results, strict=True):
        for tiling, written in zip(mine, theirs, strict=True):
            assert written.added
            found = revision_of(ledger, "GPU-0", DAY, written.revision)
            assert found.tiling == tiling
            assert found.supersedes == (written.revision - 1 or None)
    ledger.close()


def test_the_same_tiling_written_at_once_is_one_revision(url):
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
    ledger.write(red)
    whole = sum(entry.quantity for entry in red.entries) // len(Tiling)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [ledger.write(tiling) for tiling in (green, red) * 20])
        reads = 0
        while not writing.done() or not reads:
            assert set(sizes_of_day(ledger, DAY).values()) == {whole}
            assert revision_of(ledger, "GPU-0", DAY).tiling in (red, green)
            reads += 1
        writing.result()
    ledger.close()


KILLED = """
import os, sys
sys.path.insert(0, {directory!r})
from days import held, metered
from sqlalchemy import event
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

def die(connection, cursor, statement, *_rest):
    if statement.startswith("INSERT INTO ledger_entry"):
        os._exit(9)

database = Database({url!r}, metadata)
event.listen(database.engine, "after_cursor_execute", die)
Ledger(database).write(metered(held("GPU-0", "red")))
"""


def test_a_writer_that_ends_in_the_middle_leaves_nothing(url, request):
    script = KILLED.format(directory=str(request.path.parent), url=url)
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == 9, ended.stderr
    ledger = Ledger.open(url, metadata)
    assert revision_of(ledger, "GPU-0", DAY) is None
    assert ledger.write(metered(held("GPU-0", "red"))).revision == 1
    ledger.close()
