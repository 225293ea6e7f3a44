"""Fixtures of every test: a fresh logger, and `support` on the import path."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from support import examples, processor_time, stories
from support.disk import memory_directory, small_file_system

# Unless the caller has chosen a directory for temporary files: in memory, also for child processes.
if "TMPDIR" not in os.environ and (_memory := memory_directory()):
    os.environ["TMPDIR"] = tempfile.tempdir = _memory

# Programs in Go live for seconds here: less garbage collection halves the CPU time of promtool.
os.environ.setdefault("GOGC", "400")

# Commands must not read settings of programs that are installed on this machine.
os.environ["RAILSCOPE_CONFIGURATION"] = "/nonexistent"

# The same examples in every run, so that a failure is due to the change that it follows. A slow
# machine fails no test: examples have no deadline, and their generation may take any time.
settings.register_profile(
    "railscope",
    deadline=None,
    max_examples=examples.DEFAULT,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# `make thorough` tries many more, other ones in each run.
settings.register_profile("thorough", deadline=None, max_examples=1000, derandomize=False)
settings.load_profile("railscope")
# `make quick` tries few.
settings.register_profile("quick", parent=settings.get_profile("railscope"), max_examples=3)


# As rarely as in a collector, which sets this for the process of a test as well; also while the tests
# are collected.
gc.set_threshold(50_000, 50, 1000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make quick` and `make thorough`, and the one that writes expected lines again."""
    parser.addoption("--quick", action="store_true", help="only stories and properties")
    parser.addoption(
        "--limit-seconds", action="store_true", help="fail if a test of `make test` takes too long"
    )
    parser.addoption(
        "--write-stories", action="store_true", help="write the expected lines of stories again"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let each worker import other modules first: in a fresh clone they share the work of compiling."""
    config.pluginmanager.register(processor_time)
    if config.option.quick:
        settings.load_profile("quick")
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    directories = [Path(path) for path in config.args if "::" not in path]
    if not worker or len(directories) < len(config.args):
        return
    modules = sorted(
        module
        for path in directories
        for module in (path.rglob("test_*.py") if path.is_dir() else [path])
    )
    number = int(worker["workerid"].removeprefix("gw"))
    first = len(modules) * number // worker["workercount"]
    config.args = [str(module) for module in modules[first:] + modules[:first]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test of a runner its stories."""
    stories.parametrize(metafunc)


def _is_quick(item: pytest.Item) -> bool:
    """True for a story and for a property of Hypothesis, whose plugin marks it; not with a time limit of its own."""
    is_property = item.get_closest_marker("hypothesis") is not None
    is_story = "story" in getattr(item, "fixturenames", ())
    return (is_property or is_story) and item.get_closest_marker("timeout") is None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module for `make quick` that can have neither stories nor properties."""
    if not config.option.quick or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return None if "story" in text or "hypothesis" in text else True


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave a second database to `make thorough`, except for the tests of its statements."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if "postgresql" in parameters and not item.get_closest_marker("statements"):
        item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select those of `make quick`; start tests of real programs first, on the workers in excess of cores: they mostly wait.

    `--dist worksteal` gives each worker an equal part of the list of selected tests (so this runs after the selection by
    marks), in its order, and does not move its last tests. Tests of a module share its fixtures, but those with a longer
    time limit have none to share: they go to different workers, and first.
    """
    if config.option.quick:
        config.hook.pytest_deselected(items=[item for item in items if not _is_quick(item)])
        items[:] = filter(_is_quick, items)
    items.sort(key=lambda item: item.path)
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    waiting = max(workers - len(os.sched_getaffinity(0)), 1)
    others = [item for item in items if "chain" not in item.path.parts]
    of_programs = [item for item in items if "chain" in item.path.parts]

    def group_of(item: pytest.Item) -> object:
        return item.nodeid if item.get_closest_marker("timeout") else item.path

    number = {group: at for at, group in enumerate(dict.fromkeys(map(group_of, of_programs)))}
    ordered = list[pytest.Item]()
    for turn in range(waiting):
        part = [item for item in of_programs if number[group_of(item)] % waiting == turn]
        part.sort(key=lambda item: item.get_closest_marker("timeout") is None)
        # A remainder goes to the later workers. A program at the end of an earlier one's part would run last.
        size = (len(items) - len(ordered)) // (workers - turn)
        ordered += part + others[: max(size - len(part), 0)]
        del others[: max(size - len(part), 0)]
    items[:] = ordered + others


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collection, which otherwise visits them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_logger() -> Iterator[None]:
    """Commands configure the logger of the whole process; no test sees another's."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with small_file_system(tmp_path / "disk", 64) as directory:
        yield directory
