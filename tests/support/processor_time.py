"""Plugin of pytest: processor time of tests by directory, printed at the end, and of each test in a file.

The time is that of the worker and of its child processes that have ended: servers that outlive a test count for none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_PROPERTY = "processor_seconds"
MAX_SECONDS = 1
"""Of a test of `make test` that is no journey. Longer ones are printed; `make thorough` fails at three times that."""
_START = pytest.StashKey[float]()
_FILE = os.environ.pop("RAILSCOPE_PROCESSOR_TIMES", "")
"""File that receives a line per test: seconds, and the test. Not for pytest within tests: it would replace the file."""


def _now() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash.setdefault(_START, _now())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    # The report of the end carries it to the process that prints.
    if call.when == "teardown" and _START in item.stash:
        item.user_properties.append((_PROPERTY, _now() - item.stash[_START]))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the share of each directory."""
    seconds = {
        report.nodeid: dict(report.user_properties)[_PROPERTY]
        for reports in terminalreporter.stats.values()
        for report in reports
        if _PROPERTY in dict(getattr(report, "user_properties", ()))
    }
    if not (total := sum(seconds.values())):
        return
    directories = Counter[str]()
    for name, used in seconds.items():
        directories["/".join(Path(name.partition("::")[0]).parent.parts[:3])] += used
    terminalreporter.section(f"processor time of tests: {total / 60:.1f} min")
    for directory, used in directories.most_common():
        terminalreporter.write_line(f"{used / total:6.1%} {used:7.1f} s  {directory}")
    if _FILE:
        lines = sorted((f"{used:9.3f} {name}\n" for name, used in seconds.items()), reverse=True)
        Path(_FILE).write_text("".join(lines))
