"""A known device keeps its columns, absent with a reason, until it has left the system."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.failing import Asked, FailingHost, failing_host
from support.reading import Label, readings
from support.sampling import Sampling, sampling

from agent.config import AgentSettings, Periods
from agent.host import NvmlError
from agent.machine_sources import machine_sources
from agent.source import Source
from agent.status import OK
from railscope.catalog.entities import CLAIM, GPU_PROCESS
from railscope.reading import Absent

ERRNOS = {
    errno.EIO: Absent.ERROR,
    errno.EACCES: Absent.DENIED,
    errno.ETIMEDOUT: Absent.TIMEOUT,
    errno.ENODEV: Absent.GONE,
}
NVML_CODES = {999: Absent.ERROR, 4: Absent.DENIED, 10: Absent.TIMEOUT, 15: Absent.GONE}
PERIODS = Periods(**dict.fromkeys(Periods.__struct_fields__, 1.0))
SHORT = 0.3
MODES = [("whole", "cx7"), ("mig", "bnxt")]
NAMES = [source.name for source in machine_sources(AgentSettings())]
WITHOUT_COLUMNS = {
    ("nvlink_signal", "whole"),  # H100 has no counters of the signal on NVLink
    ("nvlink_signal", "mig"),
    ("nvlink", "mig"),  # a partitioned GPU has no NVLink
    ("kernel", "whole"),  # no message has been logged
    ("kernel", "mig"),
    ("tenancy", "whole"),  # no claim provider is set
    ("tenancy", "mig"),
}
"""Sources, by mode, that have nothing to read on the simulated server."""
WITHOUT_DEVICE_CALLS = {"gpu_event"}
"""Sources whose calls name no device."""
_COME_AND_GO = {GPU_PROCESS, CLAIM}


def source_of(name: str) -> Source:
    every = machine_sources(AgentSettings(node="node-1", periods=PERIODS))
    return next(source for source in every if source.name == name)


def latest(run: Sampling) -> dict[Label, Any]:
    """The readings of the last frame, without those of what comes and goes on a device."""
    frame = run.frames[-1] if run.frames else None
    if frame is None:
        return {}
    passing = {e.key for _, e in frame.schema.columns if e.kind in _COME_AND_GO}
    return {label: r for label, r in readings(frame).items() if label[1] not in passing}


@cache
def questions(name: str, root: Path, mode: str, nic: str) -> tuple[Asked, ...]:
    """What a source asks of a server that is well, if that gives it columns."""
    host = failing_host(root, mode, nic)

    async def healthy() -> int:
        async with sampling(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
            for _ in range(3):
                await run.step()
            return len(latest(run))

    return tuple(host.asked.values()) if asyncio.run(healthy()) else ()


def failing(number: int, matches: Callable[[Asked], bool]) -> Callable[[Asked], Exception | None]:
    code = list(NVML_CODES)[list(ERRNOS).index(number)]

    def fails(asked: Asked) -> Exception | None:
        if not matches(asked):
            return None
        if asked.seam == "nvml":
            return NvmlError(code)
        return OSError(number, "injected")

    return fails


def scopes(asked: Asked) -> list[Callable[[Asked], bool]]:
    """One call; all calls about the same device; all of the same seam."""
    found: list[Callable[[Asked], bool]] = [
        lambda other: other.key == asked.key,
        lambda other: other.seam == asked.seam,
    ]
    if asked.seam == "file":
        device = "/".join(asked.names[:5])
        found.append(lambda other: other.seam == "file" and other.key.startswith(device))
    elif asked.names:
        found.append(lambda other: (other.seam, other.names) == (asked.seam, asked.names))
    return found


@pytest.mark.parametrize(("mode", "nic"), MODES)
def test_sources_without_columns_on_the_simulated_server(
    mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So that no source is left out of the tests below without notice."""
    root = tmp_path_factory.getbasetemp()
    unread = {name for name in NAMES if not questions(name, root, mode, nic)}
    assert unread == {name for name, of_mode in WITHOUT_COLUMNS if of_mode == mode}


@pytest.mark.parametrize(
    ("name", "mode", "nic"),
    [
        (name, mode, nic)
        for name in NAMES
        for mode, nic in MODES
        if (name, mode) not in WITHOUT_COLUMNS
    ],
)
def test_what_fails_is_absent_with_a_reason_and_has_values_again_within_two_periods(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = questions(name, root, mode, nic)

    @settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(asked), st.integers(0, 2), st.sampled_from(list(ERRNOS)), st.integers(1, 70)
    )
    def holds(question: Asked, scope: int, number: int, seconds: int) -> None:
        matches = scopes(question)[scope % len(scopes(question))]
        asyncio.run(
            fails_and_comes_back(
                name, failing_host(root, mode, nic), failing(number, matches), seconds
            )
        )

    holds()


async def fails_and_comes_back(
    name: str, host: FailingHost, fails: Callable[[Asked], Exception | None], seconds: int
) -> None:
    async with sampling(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
        status = run.sampler.statuses[name]
        for _ in range(3):
            await run.step()
        before = latest(run)
        state_before = status.state
        valued = {label for label, reading in before.items() if not isinstance(reading, Absent)}
        host.fails = fails
        for _ in range(seconds):
            await run.step()
            now = latest(run)
            assert before.keys() <= now.keys(), sorted(before.keys() - now.keys())[:3]
            lost = {label for label in valued if isinstance(now[label], Absent)}
            reasons = {now[label] for label in lost}
            if reasons - {Absent.UNSUPPORTED, Absent.NOT_DUE} and state_before == OK:
                assert status.state != OK, reasons
        host.fails = lambda _: None
        for _ in range(2):
            await run.step()
        now = latest(run)
        missing = {
            label: now.get(label)
            for label in valued
            if isinstance(now.get(label, Absent.GONE), Absent)
        }
        assert not missing
        assert status.state == state_before


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in WITHOUT_DEVICE_CALLS and (n, MODES[0][0]) not in WITHOUT_COLUMNS],
)
def test_what_hangs_is_absent_and_has_values_again_when_it_returns(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = [question for question in questions(name, root, *MODES[0]) if question.names]

    @settings(deadline=None, max_examples=3, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(asked))
    def holds(question: Asked) -> None:
        asyncio.run(hangs_and_comes_back(name, failing_host(root), scopes(question)[0]))

    holds()


async def hangs_and_comes_back(
    name: str, host: FailingHost, matches: Callable[[Asked], bool]
) -> None:
    async with sampling(host, [source_of(name)], SHORT) as run:  # type: ignore[arg-type] # a host all the same
        status = run.sampler.statuses[name]
        for _ in range(3):
            await run.step()
        before, state_before = latest(run), status.state
        valued = {label for label, reading in before.items() if not isinstance(reading, Absent)}
        host.hangs = matches
        for _ in range(3):
            await run.step()
            now = latest(run)
            assert before.keys() <= now.keys(), sorted(before.keys() - now.keys())[:3]
        host.release()
        await run.until(lambda: not run.sampler.hung.by_device)
        await run.until(lambda: status.state == state_before)
        for _ in range(2):
            await run.step()
        now = latest(run)
        assert not [label for label in valued if isinstance(now[label], Absent)]


async def test_a_network_card_whose_statistics_fail_stays_known(tmp_path: Path) -> None:
    """Two minutes of EIO: a source that is partial all the while, and one recovery at the end."""
    host = failing_host(tmp_path)
    with capture_logs() as logs:
        async with sampling(host, [source_of("nic")]) as run:  # type: ignore[arg-type] # a host all the same
            await run.step()
            card = next(key[0] for _, key in latest(run))
            of_card = {label for label in latest(run) if label[1][0] == card}
            host.fails = failing(
                errno.EIO, lambda asked: asked.key == f"ethtool.statistics('{card}',)"
            )
            for _ in range(120):
                await run.step()
                now = latest(run)
                assert {now[label] for label in of_card} == {Absent.ERROR}
            asked_before = sum(frame.schema is run.frames[-1].schema for frame in run.frames)
            assert asked_before >= 115, "the schema changes when the facts do, not at each probe"
            host.fails = lambda _: None
            await run.step()
            assert not any(isinstance(latest(run)[label], Absent) for label in of_card)
    assert [entry["event"] for entry in logs] == ["source_partial", "source_recovered"]
    assert logs[1]["after_seconds"] == 120


async def test_a_device_that_has_left_takes_its_columns_along(tmp_path: Path) -> None:
    """Its files are gone and no call fails: also while another device keeps failing."""
    host = failing_host(tmp_path)
    drive = tmp_path / "sys/class/nvme/nvme1/state"
    drive.parent.mkdir()
    drive.write_text("live\n")
    async with sampling(host, [source_of("nvme")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        assert {key[0] for _, key in latest(run)} == {"nvme0", "nvme1"}
        host.fails = failing(errno.EIO, lambda asked: "nvme0" in asked.names)
        for _ in range(70):
            await run.step()
        drive.unlink()
        drive.parent.rmdir()
        await run.until(lambda: {key[0] for _, key in latest(run)} == {"nvme0"})
