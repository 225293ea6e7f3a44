"""A ledger with the two closed months of the billing demo, computed once for all workers of a run."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from support.once_per_run import once_per_run

from railscope_collector.billing import billing_demo
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

FILE = "months.sqlite"


def build_demo_months(factory: pytest.TempPathFactory) -> Path:
    """Return the SQLite file of the ledger, which nothing may change."""

    def write(directory: Path) -> None:
        directory.mkdir()
        file = directory / FILE
        ledger = Ledger.open(f"sqlite:///{file}", metadata)
        result = billing_demo.run_demo(ledger)
        ledger.close()
        file.with_suffix(".result").write_bytes(pickle.dumps(result))

    return once_per_run(factory, "demo-months", write) / FILE


def result_of_demo(months: Path) -> billing_demo.BillingDemo:
    """Return what the demo returned when it made the ledger."""
    found: billing_demo.BillingDemo = pickle.loads(months.with_suffix(".result").read_bytes())  # noqa: S301 - own file
    return found


def copy_demo_months(months: Path, file: Path) -> str:
    """Copy the ledger to a new file, and return its URL."""
    shutil.copyfile(months, file)
    return f"sqlite:///{file}"
