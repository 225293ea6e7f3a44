"""Closings of a period in processes of their own, forked from one that has imported the program."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import event
from support.books import ONE, manager_after
from support.fork_server import serve

from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata


def close(url: str, dies: str, all_ready: Barrier) -> None:
    """Close the period, and print the root of its manifest; end after a statement with the text `dies`."""
    ledger = Ledger.open(url, metadata)

    def die(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if dies in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    if dies:
        event.listen(ledger.database.engine, "after_cursor_execute", die)
    all_ready.wait()
    print(BillingBooks.for_ledger(ledger).close(ONE, manager_after(ONE)).closing.manifest_root)  # noqa: T201


def close_at_once(_directory: str, url: str, dies: str, count: str) -> None:
    """Close the period in some processes at the same time, and print their exit statuses."""
    forking = multiprocessing.get_context("fork")
    all_ready = forking.Barrier(int(count))
    closers = [
        forking.Process(target=close, args=(url, dies, all_ready)) for _ in range(int(count))
    ]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    print([closer.exitcode for closer in closers])  # noqa: T201


if __name__ == "__main__":
    serve(lambda *_: None, close_at_once)
