"""Plugin of pytest: processor time of tests and of their child processes that have ended, printed at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_PROPERTY, _LIMITED = "processor_seconds", "is_limited"
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
    if call.when == "teardown" and _START in item.stash:
        item.user_properties.append((_PROPERTY, _now() - item.stash[_START]))
        marks = map(item.get_closest_marker, ("journey", "thorough"))
        item.user_properties.append((_LIMITED, not any(marks)))
    return (yield)


def _seconds(reporter: pytest.TerminalReporter, *, limited: bool = False) -> Counter[str]:
    """Return the time of each test, or of those with a limit."""
    reports = (report for each in reporter.stats.values() for report in each)
    found = ((report.nodeid, dict(getattr(report, "user_properties", ()))) for report in reports)
    timed = ((name, own) for name, own in found if _PROPERTY in own)
    return Counter({name: own[_PROPERTY] for name, own in timed if own[_LIMITED] or not limited})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of `make thorough` with a test that takes much longer than it may."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and session.config.option.limit_seconds:
        slowest = max(_seconds(reporter, limited=True).values(), default=0)
        session.exitstatus = session.exitstatus or int(slowest > 3 * MAX_SECONDS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the share of each directory, and the tests above the limit."""
    seconds = _seconds(terminalreporter)
    if not (total := sum(seconds.values())):
        return
    directories = Counter[str]()
    for name, used in seconds.items():
        directories["/".join(Path(name.partition("::")[0]).parent.parts[:3])] += used
    terminalreporter.section(f"processor time of tests: {total / 60:.1f} min")
    for directory, used in directories.most_common():
        terminalreporter.write_line(f"{used / total:6.1%} {used:7.1f} s  {directory}")
    for name, used in _seconds(terminalreporter, limited=True).most_common():
        if used > MAX_SECONDS:
            terminalreporter.write_line(f"more than {MAX_SECONDS} s: {used:7.1f} s  {name}")
    if _FILE:
        lines = sorted((f"{used:9.3f} {name}\n" for name, used in seconds.items()), reverse=True)
        Path(_FILE).write_text("".join(lines))
