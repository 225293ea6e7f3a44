"""Properties of the log under any sequence of events: signing, gaps, names that were erased."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from functools import partial
from itertools import combinations, count
from pathlib import Path
from unicodedata import normalize

from hypothesis import given, strategies as st
from support.agent_events import AgentEvents
from support.audit import (
    KEY,
    append_drafts,
    audit_log,
    draft,
    running_log,
    verify_directory,
)
from support.event_recording import recorded_events, run_recorder
from support.examples import fewer_examples

from railscope.audit.log_checkpoint import read_checkpoint
from railscope.audit.merkle import CompactRange, leaf_hash
from railscope.audit.record import RecordSource, decode_audit_record
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.audit.log_secrets import PersonalSalts
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.record_checks import SourceContinuity
from railscope_collector.audit.signing_guard import CheckpointConflictError, SigningGuard
from railscope_collector.commands.audit import read_records
from railscope_collector.ledger.record_draft import build_record

steps = st.lists(st.sampled_from(["append", "sign", "restart", "back up", "put back"]), max_size=14)


class WitnessedLog:
    """A log that is restarted and replaced by older copies, with and without the own records, and one agent that holds checkpoints."""

    def __init__(self, directory: Path, *, has_own_records: bool) -> None:
        self.directory, self.copies = directory / "log", directory / "copies"
        self.has_own_records = has_own_records
        self.numbers, self.boots = count(), count()
        self.held = ""
        self.signed: dict[str, list[bytes]] = {}
        """Each checkpoint with the leaves that it was over."""
        self.conflicts = 0

    async def live(self, todo: list[str]) -> None:
        """One run of the collector. The agent presents its checkpoint, and receives every signed one."""
        log = audit_log(
            self.directory,
            boot=f"b{next(self.boots)}",
            before_signing=lambda: guard.check_allowed(),  # noqa: PLW0108 - it is made later
        )
        guard = SigningGuard(AuditTrail(log, "1"), self.directory / "disputed", 1, 3600, lambda: 1)
        guard.open()
        async with running_log(log):
            asking = asyncio.create_task(guard.run())
            try:
                await guard.submit_checkpoint("n1", self.held)
                await asking
            except CheckpointConflictError:
                self.conflicts += 1
                asking.cancel()
            for step in todo:
                if step == "append":
                    await append_drafts(log, [next(self.numbers) for _ in range(3)])
                else:
                    with contextlib.suppress(LogWriteError):
                        await log.sign()
                    self.see(log)
        self.see(log)
        log.database().close()

    def see(self, log: AuditLog) -> None:
        if log.note and log.note not in self.signed:
            with log.read() as tree:
                self.signed[log.note] = [leaf_hash(raw) for raw in tree.records_from(0)]
            self.held = log.note

    def back_up(self) -> None:
        shutil.rmtree(self.copies, ignore_errors=True)
        shutil.copytree(self.directory, self.copies)

    def put_back(self) -> None:
        if not self.copies.exists():
            return
        if self.has_own_records:
            shutil.copy(self.copies / "ledger.sqlite", self.directory / "ledger.sqlite")
        else:
            shutil.rmtree(self.directory)
            shutil.copytree(self.copies, self.directory)


@fewer_examples(25)
@given(steps, st.booleans())
def test_t6_no_two_signed_checkpoints_contradict_each_other(
    story: list[str],
    has_own_records: bool,  # noqa: FBT001 - drawn
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        one = WitnessedLog(Path(directory), has_own_records=has_own_records)
        begun: list[str] = []
        for step in [*story, "restart"]:
            if step in {"append", "sign"}:
                begun.append(step)
                continue
            asyncio.run(one.live(begun))
            begun = []
            if step == "back up":
                one.back_up()
            elif step == "put back":
                one.put_back()
        for note, leaves in one.signed.items():
            tree = CompactRange()
            for leaf in leaves:
                tree.append(leaf)
            assert read_checkpoint(note, KEY.public).tree.root == tree.root
        for some, others in combinations(sorted(one.signed.values(), key=len), 2):
            assert others[: len(some)] == some
        assert not (has_own_records and one.conflicts), "an honest restore of the database heals"


def test_t6_a_copy_that_was_put_back_is_a_conflict() -> None:
    with tempfile.TemporaryDirectory() as directory:
        one = WitnessedLog(Path(directory), has_own_records=False)
        for todo in (["append", "sign"], ["append", "sign"]):
            asyncio.run(one.live(todo))
            if not one.copies.exists():
                one.back_up()
        signed = dict(one.signed)
        one.put_back()
        asyncio.run(one.live(["append", "sign"]))
        assert (one.conflicts, one.signed) == (1, signed)


runs = st.lists(
    st.lists(st.integers(0, 12), min_size=1, unique=True), min_size=1, max_size=3
).flatmap(
    lambda numbers: st.permutations(
        [(run, number) for run, kept in enumerate(numbers) for number in kept]
    )
)


@given(runs)
def test_t8_what_was_dropped_is_missed_and_nothing_else(reported: list[tuple[int, int]]) -> None:
    continuity = SourceContinuity()
    for sequence, (run, number) in enumerate(reported):
        source = RecordSource("agent", "n1", f"r{run}", number)
        continuity.add(build_record(draft(0), source, sequence))
    came: dict[int, set[int]] = {}
    for run, number in reported:
        came.setdefault(run, set()).add(number)
    missing = {
        (f"r{run}", number)
        for run, numbers in came.items()
        for number in range(max(numbers))
        if number not in numbers
    }
    found: list[tuple[str, int]] = []
    for finding in continuity.findings():
        parts = finding.replace(",", "").replace(":", "").split()
        run, first, last = parts[3], parts[-5], parts[-3]
        found += [(run, number) for number in range(int(first), int(last) + 1)]
    assert sorted(found) == sorted(missing)


names_ = st.text(st.characters(categories=["L"]), min_size=1).map(partial(normalize, "NFC"))
persons = st.lists(names_, min_size=1, max_size=4)


@fewer_examples(25)
@given(persons, st.data())
def test_t9_erasing_salts_changes_nothing_but_the_confirmable_names(
    names: list[str], data: st.DataObject
) -> None:
    erased = set(data.draw(st.lists(st.sampled_from(names))))
    with tempfile.TemporaryDirectory() as directory:
        teller, salts = AgentEvents(), PersonalSalts(Path(directory) / "personal")
        reported = [teller.claimed(str(n), f"GPU-{n}", owner=name) for n, name in enumerate(names)]

        async def listened() -> None:
            async with run_recorder(Path(directory)) as recording:
                await recorded_events(recording, reported)

        asyncio.run(listened())
        before = verify_directory(Path(directory) / "log")
        known = {name: salts.find_commitment(name) for name in names}
        for name in erased:
            assert salts.erase(name)
        assert verify_directory(Path(directory) / "log") == before
        assert {name: salts.find_commitment(name) for name in names} == {
            name: None if name in erased else known[name] for name in names
        }
        raws = [*read_records(str(Path(directory) / "log" / "ledger.sqlite"), 2)]
        assert [decode_audit_record(raw).pii["owner"] for raw in raws] == [
            known[name] for name in names
        ]


def test_an_erased_salt_has_no_copy_of_a_writer_that_was_killed(tmp_path: Path) -> None:
    """The writer may have ended between the creation of a salt and the deletion of its temporary name."""
    salts = PersonalSalts(tmp_path)
    salts.make_commitment("zoe")
    (salt,) = tmp_path.iterdir()
    salt.with_name(f"{salt.name}.0123abcd.partial").hardlink_to(salt)
    assert salts.erase("zoe")
    assert not salts.erase("zoe")
    assert list(tmp_path.iterdir()) == []
