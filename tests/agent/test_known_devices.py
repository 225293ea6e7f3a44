"""A known device keeps its columns, absent with a reason, until it has left the system."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs
from support.examples import few_examples
from support.failing import FailingHost, HostCall, failing_host
from support.reading import Label, readings
from support.sampling import RunningSampler, run_sampler, source_of

from railscope.catalog.entities import CLAIM, GPU_PROCESS
from railscope.reading import Absent
from railscope_agent.config import AgentSettings
from railscope_agent.host import NvmlError
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.status import OK

ERRNOS = {
    errno.EIO: Absent.ERROR,
    errno.EACCES: Absent.DENIED,
    errno.ETIMEDOUT: Absent.TIMEOUT,
    errno.ENODEV: Absent.GONE,
}
NVML_CODES = {999: Absent.ERROR, 4: Absent.DENIED, 10: Absent.TIMEOUT, 15: Absent.GONE}
SHORT = 0.3
DURATIONS = st.sampled_from([1, 2, 3, 15, 62])
"""Seconds of a fault: the last include a probe."""
MODES = [("whole", "cx7"), ("mig", "bnxt")]
NAMES = [source.name for source in machine_sources(AgentSettings())]
WITHOUT_COLUMNS = {
    ("nvlink_signal", "whole"),  # H100 has no counters of the signal on NVLink
    ("nvlink_signal", "mig"),
    ("link_errors", "mig"),  # the driver's statistics have all that bnxt counts
    ("nvlink", "mig"),  # a partitioned GPU has no NVLink
    ("kernel", "whole"),  # no message has been logged
    ("kernel", "mig"),
    ("tenancy", "whole"),  # no claim provider is set
    ("tenancy", "mig"),
    ("worker_server", "whole"),  # it is off by default
    ("worker_server", "mig"),
    ("flight_recorder", "whole"),  # no job has written a dump
    ("flight_recorder", "mig"),
    ("collective_rank", "whole"),
    ("collective_rank", "mig"),
    ("nccl_inspector", "whole"),  # it is switched off
    ("nccl_inspector", "mig"),
    ("communicator", "whole"),
    ("communicator", "mig"),
    ("nccl_metrics", "whole"),
    ("nccl_metrics", "mig"),
    ("nccl_ras", "whole"),  # it is off by default
    ("nccl_ras", "mig"),
    ("nccl_rank", "whole"),
    ("nccl_rank", "mig"),
}
"""Sources, by mode, that have nothing to read on the simulated server."""
WITHOUT_DEVICE_CALLS = {"gpu_event"}
"""Sources whose calls name no device."""
VARYING = (
    "lldp.", "netlink.dcb(", "netlink.fec(", "netlink.link_modes(", "netlink.links(",
    "netlink.module(", "netlink.pause(", "/sys/class/net/bond0/bonding/slaves",
)  # fmt: skip
"""Sources that report less where a link is down, a module is unplugged or a member has left."""
DEVICE_TABLES = ("/mountstats", "/mountinfo", "/route", "/softnet_stat", "/nf_conntrack")
_COME_AND_GO = {GPU_PROCESS, CLAIM}


def latest(run: RunningSampler) -> dict[Label, Any]:
    """Return the readings of the last frame, without those of temporary entities of a device."""
    frame = run.frames[-1] if run.frames else None
    if frame is None:
        return {}
    passing = {e.key for _, e in frame.schema.columns if e.kind in _COME_AND_GO}
    return {label: r for label, r in readings(frame).items() if label[1] not in passing}


@cache
def questions(name: str, root: Path, mode: str, nic: str) -> tuple[HostCall, ...]:
    """Return the calls of a source on a healthy host, if they give it columns."""
    host = failing_host(root, mode, nic)

    async def healthy() -> int:
        async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
            for _ in range(3):
                await run.step()
            return len(latest(run))

    return tuple(host.asked.values()) if asyncio.run(healthy()) else ()


def failing(
    number: int, matches: Callable[[HostCall], bool]
) -> Callable[[HostCall], Exception | None]:
    code = list(NVML_CODES)[list(ERRNOS).index(number)]

    def fails(asked: HostCall) -> Exception | None:
        if not matches(asked):
            return None
        if asked.host_interface == "nvml":
            return NvmlError(code)
        if number == errno.ENODEV and asked.key.startswith("netlink.module("):
            return OSError(errno.EIO, "injected")  # the other one states that the socket is empty
        return OSError(number, "injected")

    return fails


def scopes(asked: HostCall) -> list[Callable[[HostCall], bool]]:
    """One call; all calls about the same device; all of the same host interface."""
    found: list[Callable[[HostCall], bool]] = [
        lambda other: other.key == asked.key,
        lambda other: other.host_interface == asked.host_interface,
    ]
    if asked.host_interface == "file":
        device = "/".join(asked.names[:5])
        found.append(lambda other: other.host_interface == "file" and other.key.startswith(device))
    elif asked.names:
        found.append(
            lambda other: (other.host_interface, other.names) == (asked.host_interface, asked.names)
        )
    return found


def _empty(_: HostCall, answer: Any) -> Any:
    """An empty file, listing or table."""
    return answer[:0] if isinstance(answer, bytes | list) else _part(answer, 0)


def _cut_at_a_line(asked: HostCall, answer: Any) -> Any:
    """The first half of the lines; files with a line per device are complete after any line."""
    if not isinstance(answer, bytes):
        return _part(answer, 2)
    lines = answer.splitlines(keepends=True)
    if asked.key.endswith(DEVICE_TABLES) or len(lines) == 1:
        return answer
    return b"".join(lines[: len(lines) // 2])


def _cut_in_a_line(_: HostCall, answer: Any) -> Any:
    return answer[: len(answer) // 2] if isinstance(answer, bytes) else _part(answer, 3)


def _part(answer: Any, share: int) -> Any:
    """One of `share` entries of an answer (none for 0), and of each answer within."""
    if isinstance(answer, dict):
        if answer and all(isinstance(value, dict) for value in answer.values()):
            return {key: _part(value, share) for key, value in answer.items()}
        if "names" in answer:
            return {key: _part(value, share) for key, value in answer.items()}
        kept = list(answer)[::share] if share else []
        return {key: answer[key] for key in kept}
    if isinstance(answer, list):
        return answer[::share] if share else []
    return answer


LESS = [_empty, _cut_at_a_line, _cut_in_a_line]


def answering_less(
    less: Callable[[HostCall, Any], Any], matches: Callable[[HostCall], bool]
) -> Callable[[HostCall, Any], Any]:
    def answers(asked: HostCall, answer: Any) -> Any:
        if not matches(asked) or asked.key.startswith(VARYING):
            return answer
        if asked.host_interface == "nvml" and not isinstance(answer, dict):
            return answer  # lists of temporary entries, and batches of fixed length
        return less(asked, answer)

    return answers


@pytest.mark.parametrize(("mode", "nic"), MODES)
def test_sources_without_columns_on_the_simulated_server(
    mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Guard against sources that the tests below would skip silently."""
    root = tmp_path_factory.getbasetemp()
    unread = {name for name in NAMES if not questions(name, root, mode, nic)}
    assert unread == {name for name, of_mode in WITHOUT_COLUMNS if of_mode == mode}


EACH_SOURCE = pytest.mark.parametrize(
    ("name", "mode", "nic"),
    [
        (name, mode, nic)
        for name in NAMES
        for mode, nic in MODES
        if (name, mode) not in WITHOUT_COLUMNS
    ],
)


@EACH_SOURCE
def test_failing_calls_give_absent_readings_and_recover_within_two_periods(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = questions(name, root, mode, nic)

    @few_examples(10)
    @given(st.sampled_from(asked), st.integers(0, 2), st.sampled_from(list(ERRNOS)), DURATIONS)
    def holds(question: HostCall, scope: int, number: int, seconds: int) -> None:
        matches = scopes(question)[scope % len(scopes(question))]
        asyncio.run(
            fails_and_comes_back(
                name, failing_host(root, mode, nic), failing(number, matches), seconds
            )
        )

    holds()


async def fails_and_comes_back(
    name: str,
    host: FailingHost,
    fails: Callable[[HostCall], Exception | None],
    seconds: int,
    answers: Callable[[HostCall, Any], Any] = lambda _, answer: answer,
) -> None:
    async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
        status = run.sampler.statuses[name]
        for _ in range(3):
            await run.step()
        before = latest(run)
        state_before = status.state
        valued = {label for label, reading in before.items() if not isinstance(reading, Absent)}
        whole = host.answers
        host.fails, host.answers = fails, answers
        for _ in range(seconds):
            await run.step()
            now = latest(run)
            assert before.keys() <= now.keys(), sorted(before.keys() - now.keys())[:3]
            lost = {label for label in valued if isinstance(now[label], Absent)}
            reasons = {now[label] for label in lost}
            if reasons - {Absent.UNSUPPORTED, Absent.NOT_DUE} and state_before == OK:
                assert status.state != OK, reasons
        host.fails, host.answers = (lambda _: None), whole
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


@EACH_SOURCE
def test_shortened_answers_give_absent_readings_and_recover_within_two_periods(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Empty files and listings, files that end in the middle, answers with entries missing."""
    root = tmp_path_factory.getbasetemp()
    asked = questions(name, root, mode, nic)

    @few_examples(10)
    @given(st.sampled_from(asked), st.integers(0, 2), st.sampled_from(LESS), DURATIONS)
    def holds(
        question: HostCall, scope: int, less: Callable[[HostCall, Any], Any], seconds: int
    ) -> None:
        matches = scopes(question)[scope % len(scopes(question))]
        host = failing_host(root, mode, nic)
        answers = answering_less(less, matches)
        asyncio.run(fails_and_comes_back(name, host, lambda _: None, seconds, answers))

    holds()


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in WITHOUT_DEVICE_CALLS and (n, MODES[0][0]) not in WITHOUT_COLUMNS],
)
def test_hung_calls_give_absent_readings_and_recover_on_return(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = [question for question in questions(name, root, *MODES[0]) if question.names]

    @few_examples(3)
    @given(st.sampled_from(asked))
    def holds(question: HostCall) -> None:
        asyncio.run(hangs_and_comes_back(name, failing_host(root), scopes(question)[0]))

    holds()


async def hangs_and_comes_back(
    name: str, host: FailingHost, matches: Callable[[HostCall], bool]
) -> None:
    async with run_sampler(host, [source_of(name)], SHORT) as run:  # type: ignore[arg-type] # a host all the same
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


async def test_a_nic_with_failing_statistics_stays_known(tmp_path: Path) -> None:
    """Two minutes of EIO: the source is partial throughout, and recovers once at the end."""
    host = failing_host(tmp_path)
    with capture_logs() as logs:
        async with run_sampler(host, [source_of("nic")]) as run:  # type: ignore[arg-type] # a host all the same
            await run.step()
            interface = next(key[0] for _, key in latest(run))
            of_nic = {label for label in latest(run) if label[1][0] == interface}
            host.fails = failing(
                errno.EIO, lambda asked: asked.key == f"ethtool.statistics('{interface}',)"
            )
            for _ in range(120):
                await run.step()
                now = latest(run)
                assert {now[label] for label in of_nic} == {Absent.ERROR}
            asked_before = sum(frame.schema is run.frames[-1].schema for frame in run.frames)
            assert asked_before >= 115, "the schema changes when the facts do, not at each probe"
            host.fails = lambda _: None
            await run.step()
            assert not any(isinstance(latest(run)[label], Absent) for label in of_nic)
    assert [entry["event"] for entry in logs] == ["source_degraded", "source_recovered"]
    assert logs[1]["failed_seconds"] == 120


async def test_a_device_that_has_left_takes_its_columns_along(tmp_path: Path) -> None:
    """Its files are gone and no call fails: also while another device keeps failing."""
    host = failing_host(tmp_path)
    drive = tmp_path / "sys/class/nvme/nvme1/state"
    drive.parent.mkdir()
    drive.write_text("live\n")
    async with run_sampler(host, [source_of("nvme")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        assert {key[0] for _, key in latest(run)} == {"nvme0", "nvme1"}
        host.fails = failing(errno.EIO, lambda asked: "nvme0" in asked.names)
        for _ in range(70):
            await run.step()
        drive.unlink()
        drive.parent.rmdir()
        await run.until(lambda: {key[0] for _, key in latest(run)} == {"nvme0"})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("pcie", "aer_dev_fatal"),
        ("host", "/proc/pressure/memory"),
        ("protocols", "softnet_stat"),
        ("lustre", "stats"),
        ("nic_settings", "mtu"),
        ("nfs", "mountstats"),
    ],
)
async def test_readings_of_an_emptied_file_are_absent_as_errors(
    name: str, path: str, tmp_path: Path
) -> None:
    host = failing_host(tmp_path)
    async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
        for _ in range(3):
            await run.step()
        before = latest(run)
        host.answers = lambda asked, answer: b"" if asked.key.endswith(path) else answer
        for _ in range(10):
            await run.step()
        now = latest(run)
        hidden = {label for label in before if isinstance(now[label], Absent)}
        assert hidden
        assert {now[label] for label in hidden if not isinstance(before[label], Absent)} == {
            Absent.ERROR
        }


async def test_the_last_device_of_a_listing_can_leave(tmp_path: Path) -> None:
    """Its listing is as empty as one that hides it, but the device is not found by its name."""
    host = failing_host(tmp_path)
    async with run_sampler(host, [source_of("nvme")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        host.answers = lambda asked, answer: [] if asked.key == "/sys/class/nvme" else answer
        for _ in range(70):
            await run.step()
        assert {key[0] for _, key in latest(run)} == {"nvme0"}
        assert set(latest(run).values()) == {Absent.ERROR}
        shutil.rmtree(tmp_path / "sys/class/nvme/nvme0")
        published = len(run.frames)
        for _ in range(3):
            await run.step()
        assert len(run.frames) == published, "a source without devices publishes nothing"


async def test_an_answer_that_stays_smaller_for_ten_minutes_is_complete(tmp_path: Path) -> None:
    """A driver may have other counters after an update: a removed counter is not an error."""
    host = failing_host(tmp_path)
    async with run_sampler(host, [source_of("lustre")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        before = latest(run)
        host.answers = lambda asked, answer: b"" if asked.key.endswith("stats") else answer
        for _ in range(8):
            await run.step(60)
        assert latest(run).keys() == before.keys()
        for _ in range(6):
            await run.step(60)
        assert latest(run).keys() < before.keys()
        assert not any(isinstance(reading, Absent) for reading in latest(run).values())
