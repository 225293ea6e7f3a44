"""Faults of one call over all sources: a known device keeps its columns, absent with a reason, and recovers.

Calls fail, hang, answer less or something malformed. A fault costs the readings that depend on the answer, and no others.
"""

from __future__ import annotations

import asyncio
import errno
import re
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
from railscope.reading import Absent, to_stored
from railscope.service import run_in_thread
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
DURATIONS = st.sampled_from([1, 2, 15, 62])
"""Seconds of a fault: the last include a probe."""
MODES = [("whole", "cx7"), ("mig", "bnxt")]
NAMES = [source.name for source in machine_sources(AgentSettings())]
WITHOUT_COLUMNS = {
    (name, mode)
    for names, modes in (
        (
            "nvlink_signal kernel tenancy flight_recorder collective_rank nccl_inspector",
            ("whole", "mig"),
        ),
        ("communicator nccl_ras nccl_rank", ("whole", "mig")),
        (
            "link_errors nvlink",
            ("mig",),
        ),  # bnxt counts them in its statistics; a partitioned GPU has no NVLink
    )
    for name in names.split()
    for mode in modes
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
REPROBE_SECONDS = 61
Change = Callable[[Any], Any]


def _each_line(change: Callable[[bytes], bytes]) -> Change:
    return lambda content: b"".join(map(change, content.splitlines(keepends=True)))


def _numbers(by: bytes) -> Change:
    return lambda content: re.sub(rb"\d+", by, content)


TEXT_CHANGES: dict[str, Change] = {
    "lines that are no text": _each_line(lambda line: b"\xff\xfe \0 garbage\n" + line),
    "a last line that is no text": lambda content: content + b"\xff\x80\n",
    "overlong lines": _each_line(lambda line: line + b"x" * 20_000 + b"\n"),
    "too many fields": _each_line(lambda line: line.rstrip(b"\n") + b" 7" * 100 + b"\n"),
    "too few fields": _each_line(lambda line: b" ".join(line.split()[: len(line.split()) // 2])),
    "no text at all": lambda _: b"\xff\xfe\0\n\xc3(",
    "negative numbers": _numbers(b"-7"),
    "huge numbers": _numbers(b"9" * 40),
    "numbers too long to convert": _numbers(b"9" * 6000),
    "digits of other scripts": _numbers("\u00b2\u0661".encode()),
    "blank lines": lambda _: b"\n\n\n",
}


def latest(run: RunningSampler) -> dict[Label, Any]:
    """Return the readings of the last frame, without those of temporary entities of a device."""
    frame = run.frames[-1] if run.frames else None
    if frame is None:
        return {}
    passing = {e.key for _, e in frame.schema.columns if e.kind in _COME_AND_GO}
    return {label: r for label, r in readings(frame).items() if label[1] not in passing}


@cache
def answers_of(name: str, root: Path, mode: str, nic: str) -> tuple[tuple[HostCall, Any], ...]:
    """Return the answers that a source receives on a healthy host."""
    host = failing_host(root, mode, nic)
    found: dict[str, tuple[HostCall, Any]] = {}

    def note(asked: HostCall, answer: Any) -> Any:
        found.setdefault(asked.key, (asked, answer))
        return answer

    host.answers = note

    async def healthy() -> int:
        async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
            for _ in range(3):
                await run.step()
            return len(latest(run))

    return tuple(found.values()) if asyncio.run(healthy()) else ()


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


Fault = tuple[Callable[[HostCall], Exception | None], Callable[[HostCall, Any], Any], bool]
"""An error of a call, a change of an answer, and whether the columns must stay."""


def _keeps(_: HostCall, answer: Any) -> Any:
    return answer


@st.composite
def faults(draw: st.DrawFn, asked: tuple[tuple[HostCall, Any], ...]) -> Fault:
    question, answer = draw(st.sampled_from(asked))
    possible = scopes(question)
    matches = possible[draw(st.integers(0, 2)) % len(possible)]
    kinds = ["fails", "less", *(["malformed"] if isinstance(answer, bytes) else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "fails":
        return failing(draw(st.sampled_from(list(ERRNOS))), matches), _keeps, True
    if kind == "less":
        return lambda _: None, answering_less(draw(st.sampled_from(LESS)), matches), False
    garbage = TEXT_CHANGES[draw(st.sampled_from(sorted(TEXT_CHANGES)))]
    return lambda _: None, _changing(question, garbage), False


def _changing(question: HostCall, change: Change) -> Callable[[HostCall, Any], Any]:
    return lambda asked, now: change(now) if asked.key == question.key else now


@pytest.mark.parametrize(
    ("mode", "nic"), [MODES[0], pytest.param(*MODES[1], marks=pytest.mark.thorough)]
)
def test_sources_without_columns_on_the_simulated_server(
    mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Guard against sources that the tests below would skip silently."""
    root = tmp_path_factory.getbasetemp()
    unread = {name for name in NAMES if not answers_of(name, root, mode, nic)}
    assert unread == {name for name, of_mode in WITHOUT_COLUMNS if of_mode == mode}


@pytest.mark.parametrize(
    ("name", "mode", "nic"),
    [
        pytest.param(name, mode, nic, marks=[pytest.mark.thorough] if mode == "mig" else [])
        for name in NAMES
        for mode, nic in MODES
        if (name, mode) not in WITHOUT_COLUMNS
    ],
)
def test_a_fault_gives_absent_readings_and_is_over_when_it_ends(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = answers_of(name, root, mode, nic)

    @few_examples(10)
    @given(faults(asked), DURATIONS)
    def holds(fault: Fault, seconds: int) -> None:
        asyncio.run(fails_and_comes_back(name, failing_host(root, mode, nic), fault, seconds))

    holds()


async def fails_and_comes_back(name: str, host: FailingHost, fault: Fault, seconds: int) -> None:
    """No fault of the source, no device lost, no state that hides an error, and all values back in the end."""
    fails, answers, keeps = fault
    async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
        status = run.sampler.statuses[name]
        for _ in range(3):
            await run.step()
        before, state_before = latest(run), status.state
        valued = {label for label, reading in before.items() if not isinstance(reading, Absent)}
        host.fails, host.answers = fails, answers
        for _ in range(seconds):
            await run.step()
            assert "fault in the source" not in status.problem, status.problem
            if not keeps:
                continue
            now = latest(run)
            assert before.keys() <= now.keys(), sorted(before.keys() - now.keys())[:3]
            reasons = {now[label] for label in valued if isinstance(now[label], Absent)}
            if reasons - {Absent.UNSUPPORTED, Absent.NOT_DUE} and state_before == OK:
                assert status.state != OK, reasons
        host.fails, host.answers = (lambda _: None), _keeps
        for _ in range(2):
            await run.step(1 if keeps else REPROBE_SECONDS)
        now = latest(run)
        assert not [label for label in valued if isinstance(now.get(label, Absent.GONE), Absent)]
        if now.keys() == before.keys():  # a name made of garbage stays known for ten minutes
            assert status.state == state_before


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in WITHOUT_DEVICE_CALLS and (n, MODES[0][0]) not in WITHOUT_COLUMNS],
)
def test_hung_calls_give_absent_readings_and_recover_on_return(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = [question for question, _ in answers_of(name, root, *MODES[0]) if question.names]

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
    """A minute of EIO: the source is partial throughout, and recovers once at the end."""
    host = failing_host(tmp_path)
    with capture_logs() as logs:
        async with run_sampler(host, [source_of("nic")]) as run:  # type: ignore[arg-type] # a host all the same
            await run.step()
            interface = next(key[0] for _, key in latest(run))
            of_nic = {label for label in latest(run) if label[1][0] == interface}
            host.fails = failing(
                errno.EIO, lambda asked: asked.key == f"ethtool.statistics('{interface}',)"
            )
            for _ in range(70):
                await run.step()
                now = latest(run)
                assert {now[label] for label in of_nic} == {Absent.ERROR}
            asked_before = sum(frame.schema is run.frames[-1].schema for frame in run.frames)
            assert asked_before >= 65, "the schema changes when the facts do, not at each probe"
            host.fails = lambda _: None
            await run.step()
            assert not any(isinstance(latest(run)[label], Absent) for label in of_nic)
    assert [entry["event"] for entry in logs] == ["source_degraded", "source_recovered"]
    assert logs[1]["failed_seconds"] == 70


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


@pytest.mark.parametrize("bus", ["0000:1"])
async def test_a_wrong_bus_address_of_a_nic_takes_no_columns(bus: str, tmp_path: Path) -> None:
    host = failing_host(tmp_path)
    pairs = await run_in_thread(answers_of, "nic_burst", tmp_path, *MODES[0])
    asked = [question for question, _ in pairs]
    drivers = [question for question in asked if question.key.startswith("ethtool.driver(")]
    assert drivers
    for question in drivers:
        fault = (lambda _: None), _changing(question, lambda now: now | {"bus": bus}), True
        await fails_and_comes_back("nic_burst", host, fault, 62)


async def test_a_device_that_a_table_lacks_is_absent_until_it_has_left(tmp_path: Path) -> None:
    host = failing_host(tmp_path)
    interface = tmp_path / "sys/class/net/eth0/mtu"
    interface.parent.mkdir(parents=True, exist_ok=True)
    interface.write_text("1500\n")

    def lacks(asked: HostCall, answer: Any) -> Any:
        if asked.key != "psutil.net_io_counters()":
            return answer
        return {name: counters for name, counters in answer.items() if name != "eth0"}

    async with run_sampler(host, [source_of("host")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        before = latest(run)
        host.answers = lacks
        for _ in range(2):
            await run.step(REPROBE_SECONDS)
            now = latest(run)
            assert before.keys() == now.keys()
            assert {r for (_, key), r in now.items() if key == ("eth0",)} == {Absent.ERROR}
            assert not isinstance(now["railscope_network_receive_bytes_total", ("lo",)], Absent)
        shutil.rmtree(interface.parent)
        await run.until(lambda: not any(key == ("eth0",) for _, key in latest(run)))


async def test_a_column_that_no_call_hides_leaves_after_ten_minutes(tmp_path: Path) -> None:
    """A driver may have fewer counters after an update: a removed counter is no error."""
    host = failing_host(tmp_path)
    interface = tmp_path / "sys/class/net/eth0/mtu"
    interface.parent.mkdir(parents=True, exist_ok=True)
    interface.write_text("1500\n")
    async with run_sampler(host, [source_of("host")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        host.answers = lambda asked, answer: (
            {name: counters for name, counters in answer.items() if name != "eth0"}
            if asked.key == "psutil.net_io_counters()"
            else answer
        )
        for _ in range(9):
            await run.step(60)
        assert {r for (_, key), r in latest(run).items() if key == ("eth0",)} == {Absent.ERROR}
        for _ in range(3):
            await run.step(60)
        assert not any(key == ("eth0",) for _, key in latest(run))


async def test_a_gpu_that_the_driver_does_not_count_leaves(tmp_path: Path) -> None:
    host = failing_host(tmp_path)
    async with run_sampler(host, [source_of("gpu")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        gpus = {key[0] for _, key in latest(run)}
        host.answers = lambda asked, answer: (
            len(gpus) - 1 if asked.key == "nvml.nvmlDeviceGetCount()" else answer
        )
        await run.step(REPROBE_SECONDS)
        assert len({key[0] for _, key in latest(run)}) == len(gpus) - 1


def test_a_number_that_does_not_fit_can_be_reported() -> None:
    """Python raises ValueError for the text of an integer of more than 4300 digits."""
    with pytest.raises(OverflowError, match="number of 20001 bits: expected at most 64"):
        to_stored(1 << 20000)
