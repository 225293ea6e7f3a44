"""A partial or malformed answer costs the readings that depend on it, for an error, and nothing else."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
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
from railscope_agent.sampling.answer_sizes import file_size

MODES = [("whole", "cx7"), ("mig", "bnxt")]
NAMES = [source.name for source in machine_sources(AgentSettings())]
REPROBE_SECONDS = 61
MISSING = object()
Change = Callable[[Any], Any]
IDENTITIES = (
    "driver", "name", "names", "uuid", "busId", "nvmlDeviceGetUUID", "nvmlDeviceGetCount",
)  # fmt: skip
"""Members and calls that identify a device: another well-formed value is another device."""
JSON_CHANGES: dict[str, Change] = {
    "missing": lambda _: MISSING, "null": lambda _: None, "text": lambda _: "text",
    "not text": lambda _: "\0\udcff", "negative": lambda _: -7, "huge": lambda _: 1 << 20000,
    "fraction": lambda _: 1.5, "empty list": lambda _: [], "empty object": lambda _: {},
    "shorter": lambda value: value[: len(value) // 2] if isinstance(value, list | str) else MISSING,
}  # fmt: skip
WELL_FORMED = {"text", "shorter"}
_COME_AND_GO = {GPU_PROCESS, CLAIM}


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
    if not run.frames:
        return {}
    frame = run.frames[-1]
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


def places(answer: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to an answer and to each of its parts."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(answer, dict):
        parts = list(answer.items())
    elif isinstance(answer, list):
        parts = list(enumerate(answer))
    return [path, *(place for key, part in parts for place in places(part, (*path, key)))]


def change_part(answer: Any, path: tuple[Any, ...], change: Change) -> Any:
    """Return an answer with one part changed; unchanged if it has no such part."""
    if not path:
        result = change(answer)
        return None if result is MISSING else result
    head, *rest = path
    has_part = head in answer if isinstance(answer, dict) else False
    if isinstance(answer, list):
        has_part = isinstance(head, int) and head < len(answer)
    if not has_part:
        return answer
    new = answer.copy()
    new[head] = change(answer[head]) if not rest else change_part(answer[head], tuple(rest), change)
    if new[head] is MISSING:
        del new[head]
    return new


def is_another_device(asked: HostCall, path: tuple[Any, ...], change: str) -> bool:
    """True if a change is not a visible defect: a name replaced by another name."""
    members = {str(part) for part in path}
    if "names" in members and isinstance(path[-1], int):
        return True
    is_identity = members & {*IDENTITIES} or any(name in asked.key for name in IDENTITIES[-2:])
    return change in WELL_FORMED and bool(is_identity)


CASES = [(name, mode, nic) for name in NAMES for mode, nic in MODES]


@pytest.mark.parametrize(("name", "mode", "nic"), CASES)
def test_a_malformed_part_of_an_answer_affects_only_dependent_readings(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    asked = [pair for pair in answers_of(name, root, mode, nic) if pair[0].host_interface != "file"]
    if not asked:
        return

    @few_examples(8)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        question, answer = data.draw(st.sampled_from(asked))
        path = data.draw(st.sampled_from(places(answer)))
        kind = data.draw(st.sampled_from(sorted(JSON_CHANGES)))
        if is_another_device(question, path, kind):
            return
        change = JSON_CHANGES[kind]
        host = failing_host(root, mode, nic)
        varies = question.key.startswith(("lldp.", "netlink.", "nvml.nvmlEvent"))
        asyncio.run(
            check_change_and_recovery(
                name, host, question, lambda now: change_part(now, path, change), keeps=not varies
            )
        )

    holds()


@pytest.mark.parametrize(("name", "mode", "nic"), CASES)
def test_garbage_in_a_file_affects_only_dependent_readings(
    name: str, mode: str, nic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp()
    files = [pair for pair in answers_of(name, root, mode, nic) if isinstance(pair[1], bytes)]
    if not files:
        return

    @few_examples(8)
    @given(st.sampled_from(files), st.sampled_from(sorted(TEXT_CHANGES)))
    def holds(file: tuple[HostCall, bytes], kind: str) -> None:
        host = failing_host(root, mode, nic)
        asyncio.run(check_change_and_recovery(name, host, file[0], TEXT_CHANGES[kind], keeps=False))

    holds()


async def check_change_and_recovery(
    name: str, host: FailingHost, question: HostCall, change: Change, *, keeps: bool
) -> None:
    """No fault, no other device without values, no device lost, and all values back in the end."""
    async with run_sampler(host, [source_of(name)]) as run:  # type: ignore[arg-type] # a host all the same
        status = run.sampler.statuses[name]
        for _ in range(3):
            await run.step()
        before, state = latest(run), status.state
        valued = {label for label, reading in before.items() if not isinstance(reading, Absent)}
        host.answers = lambda asked, now: change(now) if asked.key == question.key else now
        for seconds in (1, REPROBE_SECONDS, 1, REPROBE_SECONDS):
            await run.step(seconds)
            assert "fault in the source" not in status.problem, status.problem
            now = latest(run)
            if keeps:
                assert before.keys() <= now.keys(), sorted(before.keys() - now.keys())[:3]
        host.answers = lambda _, now: now
        for _ in range(2):
            await run.step(1 if keeps else REPROBE_SECONDS)
        now = latest(run)
        absent = [label for label in valued if isinstance(now.get(label, Absent.GONE), Absent)]
        assert not absent
        if now.keys() == before.keys():  # a name made of garbage stays known for ten minutes
            assert status.state == state


@pytest.mark.parametrize("whole", [b"a 1\nb 2\n", b"a 1\nb 2"])
@pytest.mark.parametrize("part", [b"a 1\n", b"a", b"\n", b""])
def test_a_file_with_fewer_lines_is_smaller(whole: bytes, part: bytes) -> None:
    assert file_size("/sys/a", part) < file_size("/sys/a", whole)
    assert file_size("/sys/a", whole.rstrip()) <= file_size("/sys/a", whole)


@pytest.mark.parametrize("bus", ["0000:1", "0000:18:00.", ":18:00.0", "text", "0000:ff:1f.7", ""])
@pytest.mark.parametrize(("mode", "nic"), MODES)
async def test_a_wrong_bus_address_of_a_nic_takes_no_columns(
    mode: str, nic: str, bus: str, tmp_path: Path
) -> None:
    host = failing_host(tmp_path, mode, nic)
    pairs = await run_in_thread(answers_of, "nic_burst", tmp_path, mode, nic)
    asked = [question for question, _ in pairs]
    drivers = [question for question in asked if question.key.startswith("ethtool.driver(")]
    assert drivers
    for question in drivers:
        await check_change_and_recovery(
            "nic_burst", host, question, lambda now: now | {"bus": bus}, keeps=True
        )


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
        for _ in range(5):
            await run.step(REPROBE_SECONDS)
            now = latest(run)
            assert before.keys() == now.keys()
            assert {r for (_, key), r in now.items() if key == ("eth0",)} == {Absent.ERROR}
            assert not isinstance(now["railscope_network_receive_bytes_total", ("lo",)], Absent)
        shutil.rmtree(interface.parent)
        await run.until(lambda: not any(key == ("eth0",) for _, key in latest(run)))


async def test_a_table_that_stays_shorter_for_ten_minutes_is_complete(tmp_path: Path) -> None:
    host = failing_host(tmp_path)

    async with run_sampler(host, [source_of("host")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        host.answers = lambda asked, answer: (
            {"eth0": answer["eth0"]} if asked.key == "psutil.net_io_counters()" else answer
        )
        for _ in range(9):
            await run.step(60)
        assert any(key == ("lo",) for _, key in latest(run))
        for _ in range(4):
            await run.step(60)
        assert not any(key == ("lo",) for _, key in latest(run))


async def test_gpus_that_the_driver_does_not_count_keep_their_values_while_they_answer(
    tmp_path: Path,
) -> None:
    host = failing_host(tmp_path)
    async with run_sampler(host, [source_of("gpu")]) as run:  # type: ignore[arg-type] # a host all the same
        await run.step()
        before = latest(run)
        host.answers = lambda asked, answer: (
            1 if asked.key == "nvml.nvmlDeviceGetCount()" else answer
        )
        await run.step(REPROBE_SECONDS)
        now = latest(run)
        assert before.keys() == now.keys()
        assert not [
            k for k in now if isinstance(now[k], Absent) and not isinstance(before[k], Absent)
        ]
        host.fails = lambda asked: NvmlError(15) if asked.names == ("1",) else None
        await run.step(REPROBE_SECONDS)
        assert len({key[0] for _, key in latest(run)}) == len({key[0] for _, key in before}) - 1


def test_a_number_that_does_not_fit_can_be_reported() -> None:
    """Python raises ValueError for the text of an integer of more than 4300 digits."""
    with pytest.raises(OverflowError, match="number of 20001 bits: expected at most 64"):
        to_stored(1 << 20000)
