"""An archive of old entries that is changed, hostile or hangs: no record is accepted from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from entry_archives import (
    archiving,
    outcome,
    store_in,
    write_archived,
)
from hypothesis import given, strategies as st
from support.audit import KEY, NOON_NS, draft
from support.examples import fewer_examples

from railscope.audit.record import RecordSource, RecordSubject
from railscope.cli import root
from railscope_collector.audit.entry_proof import check_proof
from railscope_collector.audit.periodic_verification import PeriodicVerification
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import VerifyOutcome
from railscope_collector.ledger.record_draft import RecordDraft


def test_without_the_archive_its_records_are_not_checked(tmp_path: Path) -> None:
    write_archived(tmp_path)
    found = verify_log(tmp_path / "log", KEY.public)
    assert (found.unchecked, found.findings) == (512, ())
    assert outcome(tmp_path) == (VerifyOutcome.CONSISTENT, "")
    assert outcome(tmp_path, with_archive=False) == (VerifyOutcome.UNCHECKED, "")
    periodic = PeriodicVerification(tmp_path / "log", KEY.public, 1.0, lambda: 1)
    asyncio.run(periodic.read())
    assert periodic.is_valid is None, "no result without the archive"
    periodic.archive = store_in(tmp_path)
    asyncio.run(periodic.read())
    assert periodic.is_valid is True


def of_agent(number: int, kind: str, claim: str) -> RecordDraft:
    source = RecordSource("agent", "n1", "run", number)
    return replace(
        draft(number, source=source),
        type=kind,
        data={"claim": claim, "received_ns": str(NOON_NS + number)},
        subject=RecordSubject("n1", "GPU-1"),
    )


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archived")
    write_archived(directory)
    return directory


@fewer_examples(100)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), data=st.data())
def test_any_changed_bit_of_log_or_archive_is_found(
    archived: Path, place: float, bit: int, data: st.DataObject
) -> None:
    files = [path for path in archived.rglob("*") if path.is_file() and path.stat().st_size]
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    at = int(place * len(content))
    path.chmod(0o600)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    try:
        assert outcome(archived)[0] not in {VerifyOutcome.CONSISTENT, VerifyOutcome.UNCHECKED}
    finally:
        path.write_bytes(content)


@fewer_examples(25)
@given(data=st.data())
def test_any_removed_file_of_log_or_archive_is_found(archived: Path, data: st.DataObject) -> None:
    # A partial tile that a longer one has replaced, and an empty lock, are not needed.
    files = [
        path
        for path in archived.rglob("*")
        if path.is_file() and path.stat().st_size and path.name != "88"
    ]
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    path.unlink()
    try:
        assert outcome(archived)[0] not in {VerifyOutcome.CONSISTENT, VerifyOutcome.UNCHECKED}
    finally:
        path.write_bytes(content)


def test_an_agent_cannot_state_that_entries_are_archived(tmp_path: Path) -> None:
    async def write() -> None:
        async with archiving(tmp_path, 300) as retention:
            stated = of_agent(0, "log.archive", "")
            stated.data.update({"first": 0, "records": 256})
            await retention.audit.append(stated)

    asyncio.run(write())
    (tmp_path / "log" / "tile" / "entries" / "000").unlink()
    assert outcome(tmp_path, with_archive=False)[0] == VerifyOutcome.TAIL_MISSING

    async def restart() -> str:
        async with archiving(tmp_path, boot="b1") as retention:
            await retention.attempt()
            return retention.problem

    assert "expected them, or a record that they are archived" in asyncio.run(restart())


def railscope(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["audit", *map(str, arguments)])
    return result.exit_code, result.output


def test_commands_read_the_archive(tmp_path: Path) -> None:
    write_archived(tmp_path)
    log, key = tmp_path / "log", ("--key", str(KEY.public))
    archive = ("--archive", tmp_path / "archive")
    code, output = railscope("verify", log, *key)
    assert code == VerifyOutcome.UNCHECKED
    assert output.endswith("512 records archived, not checked; fix: use --archive\n")
    code, output = railscope("verify", log, *key, *archive)
    assert (code, output.startswith("consistent: 601 records")) == (0, True)
    code, output = railscope("verify", log, *key, "--ledger", "sqlite:////missing")
    assert (code, "512 records are archived" in output) == (VerifyOutcome.UNREADABLE, True)
    code, output = railscope("show", log, "--json")
    assert (code, "records 0 to 255 are not in" in output) == (1, True)
    code, output = railscope("show", log, "--json", "--from", 512)
    assert (code, len(output.splitlines())) == (0, 89)
    code, output = railscope("show", log, "--json", *archive)
    assert (code, len(output.splitlines())) == (0, 601)
    assert railscope("tail", log, "--count", 100, *archive)[0] == 0
    code, proof = railscope("prove", log, 7, *key, *archive)
    assert (code, check_proof(proof, KEY.public)) == (0, output.splitlines()[7].encode())
    assert railscope("prove", log, 7, *key)[0] == 1
    code, output = railscope("verify", log, *key, "--archive", "archive")
    assert (code, "expected /DIRECTORY or s3://BUCKET/PREFIX" in output) == (2, True)
