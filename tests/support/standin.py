"""The stand-in for libnvidia-ml.so.1: its table, made of a capture's answers, and its control.

The library is C, in tests/nvml_standin, and answers nvidia-ml-py itself. A test that needs it runs
in its own process, because nvidia-ml-py loads one library permanently: see `scenario`. Processes are
forked from one that has imported the agent.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.fork_server import ForkServer, serve
from support.machine import FakeHost
from support.reading import ORIGIN, Label, readings
from support.standin_table import table

from railscope.reading import Reading
from railscope_agent.host import Json, NvmlError
from railscope_agent.host.nvml import Nvml
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader

SOURCES = Path(__file__).parents[1] / "nvml_standin"
LIBRARY = "libnvidia-ml.so.1"
TABLE = "table"
ROOT = Path(__file__).parents[2]
DRIVER = -1
NO_INSTANCE = 0xFFFF_FFFF
_PATIENCE_SECONDS = 60
SERVE = "serve"


def build(directory: Path, hidden: Sequence[str] = (), version: str = "") -> Path:
    """Compile the library into a directory.

    `hidden` are functions that an older driver does not have; with a version the library fits only
    the driver of that version.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f"{LIBRARY}.fresh"
    flags = ["-std=c11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
             f"-Wl,-soname,{LIBRARY}", f'-DSTANDIN_VERSION="{version}"']  # fmt: skip
    if hidden:
        script = directory / "hidden"
        script.write_text("{ global: *; local: " + " ".join(f"{name};" for name in hidden) + " };")
        flags.append(f"-Wl,--version-script={script}")
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    command = ["cc", *flags, "-o", str(fresh), *sources, "-lpthread", "-lm"]
    subprocess.run(command, check=True)
    return fresh.replace(directory / LIBRARY)  # never into a file that some process has mapped


class NvmlStandin:
    """Control of the library that this process finds first, or of a given file.

    nvidia-ml-py also finds that file if it is loaded first: it has the driver's name.
    """

    def __init__(self, directory: Path, library: str = LIBRARY) -> None:
        self.directory = directory
        self._name = library
        self._library: ctypes.CDLL | None = None

    @property
    def library(self) -> ctypes.CDLL:
        """The library, loaded at the first use."""
        if self._library is None:
            self._library = ctypes.CDLL(self._name)
            self._library.standin_event.argtypes = [
                ctypes.c_int,
                ctypes.c_ulonglong,
                ctypes.c_ulonglong,
                ctypes.c_uint,
                ctypes.c_uint,
            ]
            self._library.standin_nanoseconds.restype = ctypes.c_ulonglong
            self._library.standin_calls.restype = ctypes.c_ulong
        return self._library

    def write(self, calls: Mapping[str, Any], later_us: int = 0) -> Path:
        """Write the initial table of the library; `later_us` is added to timestamps."""
        path = self.directory / TABLE
        path.write_text(table(calls, later_us), encoding="utf-8", errors="surrogateescape")
        return path

    def load(self, calls: Mapping[str, Any], later_us: int = 0) -> None:
        """Use these answers from now on."""
        path = self.write(calls, later_us)
        assert self.library.standin_load(str(path).encode()) == 0

    def fail(self, gpu: int, code: int) -> None:
        """Make every call about a GPU, or about the driver, return a code; 0 restores it."""
        self.library.standin_fail(gpu, code)

    def event(self, gpu: int, kind: int, data: int = 0, *instances: int) -> int:
        """Raise an event on a GPU; return the number of event sets that received it."""
        return int(self.library.standin_event(gpu, kind, data, *(instances or [NO_INSTANCE] * 2)))

    def calls(self, function: str = "") -> int:
        """Return the number of calls of a function; of all functions without a name."""
        return int(self.library.standin_calls(function.encode()))

    def count(self, what: str) -> int:
        """One of: starts, attached, handles, samples, event_sets, nanoseconds."""
        return int(getattr(self.library, f"standin_{what}")())


class StandinHost(FakeHost):
    """A host with the real NVML binding over the stand-in; its clock is the manual one."""

    def __init__(self) -> None:
        super().__init__()
        self.nvml = Nvml(lambda: self.clock.now().boot_ns)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "nvml":
            return self.nvml.call(function, *arguments)
        return super().call(host_interface, function, *arguments)


class NvmlReaders:
    """The agent's NVML sources on a host, read all at once, as at a tick where all are due."""

    def __init__(self, host: StandinHost, sources: Sequence[Source]) -> None:
        self.host = host
        self.outcomes: dict[str, ReadOutcome] = {}
        self._readers = [SourceReader(source, host, ORIGIN) for source in sources]

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass and read."""
        self.host.clock.advance(seconds)
        self.outcomes = {reader.source.name: reader.run() for reader in self._readers}

    @property
    def problems(self) -> set[str]:
        """Return the problems of sources at the last tick."""
        return {outcome.problem for outcome in self.outcomes.values()} - {""}

    def of(self, gpu: int, stream: str = "gpu") -> dict[Label, Reading]:
        """Return the readings of a GPU from a source at the last tick."""
        found = readings(self.outcomes[stream].frame)
        return {label: reading for label, reading in found.items() if label[1][0] == f"GPU-{gpu}"}


Scenario = Callable[[NvmlStandin], Any]


def scenario(
    *, hidden: Sequence[str] = (), version: str = ""
) -> Callable[[Scenario], Callable[[pytest.TempPathFactory], None]]:
    """Make a test from a function of the stand-in, which runs in its own process."""

    def decorate(function: Scenario) -> Callable[[pytest.TempPathFactory], None]:
        def test(tmp_path_factory: pytest.TempPathFactory) -> None:
            run_scenario(tmp_path_factory, function, hidden=hidden, version=version)

        test.__name__ = test.__qualname__ = function.__name__
        test.__doc__ = function.__doc__
        test.__dict__["scenario"] = function
        return test

    return decorate


def run_scenario(
    tmp_path_factory: pytest.TempPathFactory,
    function: Callable[..., Any],
    *arguments: str,
    hidden: Sequence[str] = (),
    version: str = "",
) -> None:
    """Run a function of the stand-in and some arguments in its own process."""
    directory = tmp_path_factory.mktemp(function.__name__[:40])
    shutil.copy(_built(tmp_path_factory, tuple(hidden), version), directory)
    where = inspect.getfile(function), function.__name__
    if (
        version
    ):  # an updated library is found by the search path, which a program reads at its start
        outcome = run_beside(directory, __file__, *where, *arguments)
        assert outcome.returncode == 0, outcome.stderr
    else:
        status, output = _forks().run(str(directory), *where, *arguments)
        assert status == 0, output


@cache
def _forks() -> ForkServer:
    return ForkServer(__file__, SERVE)


def run_beside(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that finds the library of this directory."""
    paths = [str(ROOT), str(ROOT / "tests")]
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(directory),
        "STANDIN_TABLE": str(directory / TABLE),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=environment,
        timeout=_PATIENCE_SECONDS,
    )


_variants: dict[tuple[tuple[str, ...], str], Path] = {}


def _built(tmp_path_factory: pytest.TempPathFactory, hidden: tuple[str, ...], version: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: install the Debian package gcc")
    if (hidden, version) not in _variants:
        directory = tmp_path_factory.mktemp("library")
        _variants[hidden, version] = build(directory, hidden, version)
    return _variants[hidden, version]


@cache
def _module(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(file: str, name: str, *arguments: str) -> None:
    """Run one scenario; this is its own process."""
    function = getattr(_module(file), name)
    outcome: Json = getattr(function, "scenario", function)(NvmlStandin(Path.cwd()), *arguments)
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)


def _run_forked(directory: str, *scenario: str) -> None:
    os.chdir(directory)
    os.environ["STANDIN_TABLE"] = str(Path(directory) / TABLE)
    ctypes.CDLL(str(Path(directory) / LIBRARY))  # nvidia-ml-py finds the loaded one, by its name
    _run(*scenario)


def code_of(nvml: Nvml, function: str, *arguments: int | str) -> int:
    """Return the return code of a call that fails."""
    with pytest.raises(NvmlError) as raised:
        nvml.call(function, *arguments)
    return raised.value.code


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        serve(lambda _, file, *__: _module(file), _run_forked)
    else:
        _run(*sys.argv[1:])
