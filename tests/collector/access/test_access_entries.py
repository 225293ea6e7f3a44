"""The audit log over the network: owner of an entry, and its proofs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from sqlalchemy import text
from support.audit import (
    KEY,
    NOON_NS,
    audit_log,
    database_in,
    running_log,
    without_triggers,
)
from support.examples import fewer_examples

from railscope.api.audit import AuditEntries
from railscope.audit.log_checkpoint import read_checkpoint
from railscope.audit.merkle import TreeHead, consistent, includes, leaf_hash
from railscope.audit.record import RecordActor, RecordData, RecordSource, encode_audit_record
from railscope_collector.audit import SigningPostponedError
from railscope_collector.audit.entry_proof import check_proof
from railscope_collector.audit.record_tenants import sole_tenant
from railscope_collector.audit.verification import verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError
from railscope_collector.http.signed_entries import (
    EntrySelection,
    SignedEntries,
)
from railscope_collector.ledger.database import Database, SharedDatabase
from railscope_collector.ledger.record_draft import RecordDraft, build_record
from railscope_collector.tables import metadata

SCHEDULER = RecordActor("scheduler", "slurm")
names = st.sampled_from(["vision", "speech", "a/b", "a", "b"])


def draft(
    data: RecordData, actor: RecordActor = SCHEDULER, references: tuple[str, ...] = ()
) -> RecordDraft:
    return RecordDraft("tenancy.assign", actor, NOON_NS, "done", data=data, references=references)


def of(tenant: str, number: int) -> RecordDraft:
    return draft({"tenant": tenant, "number": number}) if tenant else draft({"number": number})


@pytest.mark.parametrize(
    ("data", "label", "whose"),
    [
        ({}, "", ""),
        ({"tenant": "vision"}, "", "vision"),
        ({"tenant": ""}, "", ""),
        ({"tenant": None}, "", ""),
        ({"tenant": 7}, "", ""),
        ({"tenants": ["vision"]}, "", "vision"),
        ({"tenants": ["vision", "speech"]}, "", ""),
        ({"tenant": "vision", "to_tenant": "speech"}, "", ""),
        ({"tenant": "vision", "to_tenant": "vision"}, "", "vision"),
        ({"tenant": "vision", "more": {"for_tenant": "speech"}}, "", ""),
        ({"tenant": "vision", "tenants": {"speech": 1}}, "", ""),
        ({"tenant": "vision", "other_claim": "x"}, "", ""),
        ({}, "tenant/vision/board", "vision"),
        ({}, "tenant/a%2Fb/board", "a/b"),
        ({"tenant": "vision"}, "tenant/vision/board", "vision"),
        ({"tenant": "vision"}, "tenant/speech/board", ""),
        ({"tenant": "vision"}, "finance/bills", "vision"),
        ({}, "finance/bills", ""),
    ],
)
def test_whose_a_record_is(data: RecordData, label: str, whose: str) -> None:
    actor = RecordActor("credential", label) if label else SCHEDULER
    made = build_record(draft(data, actor), RecordSource("collector", "c", "b", 0), 0)
    assert sole_tenant(made) == whose
    if whose:
        assert b"tenant" in encode_audit_record(made), "what the index looks for before it decodes"


def log_of(directory: Path, *groups: list[RecordDraft]) -> list[TreeHead]:
    """A log signed after each group."""

    signed: list[TreeHead] = []
    has_first = False

    def guard() -> None:
        if not has_first:
            raise SigningPostponedError

    async def write() -> list[TreeHead]:
        nonlocal has_first
        async with running_log(audit_log(directory, before_signing=guard)) as log:
            for number, group in enumerate(groups):
                if not number:
                    # In place of the first record that a log writes itself.
                    group[0] = replace(group[0], type="log.genesis")
                await asyncio.gather(*(log.append(one) for one in group))
                has_first = True
                await log.sign()
                signed.append(log.signed)
        return signed

    return asyncio.run(write())


def opened(directory: Path) -> Callable[[], Database]:
    return SharedDatabase(f"sqlite:///{directory / 'ledger.sqlite'}", metadata).open


def check(page: AuditEntries) -> list[Any]:
    """The numbers of a page's entries, once all of its proofs have been checked."""
    tree = read_checkpoint(page.checkpoint, KEY.public).tree
    assert tree.size == page.size
    numbers = []
    for entry in json.loads(msgspec.json.encode(page))["entries"]:
        proof = [base64.b64decode(one) for one in entry["proof"]]
        leaf = base64.b64decode(entry["leaf"])
        assert includes(leaf, entry["index"], tree.size, proof, tree.root)
        if "withheld" not in entry:
            raw = json.dumps(
                entry["record"], sort_keys=True, separators=(",", ":"), ensure_ascii=False
            )
            assert leaf_hash(raw.encode()) == leaf, (
                "the canonical bytes can be made from the answer"
            )
        assert entry["record"]["seq"] == entry["index"]
        numbers.append(entry["record"]["data"]["number"])
    return numbers


@fewer_examples(25)
@given(
    st.lists(st.lists(st.sampled_from(["vision", "speech", ""]), max_size=300), max_size=3),
    st.integers(1, 120),
    st.integers(0, 700),
)
def test_a_tenant_pages_through_its_own_entries(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[str]], most: int, first: int
) -> None:
    directory = tmp_path_factory.mktemp("audit")
    tenants = ["", *(tenant for group in groups for tenant in group)]
    numbered = iter(of(tenant, number) for number, tenant in enumerate(tenants))
    log_of(directory, [next(numbered)], *([next(numbered) for _ in group] for group in groups))
    entries = SignedEntries(opened(directory), KEY.public)
    for tenant in ("vision", "speech", "nobody", None):
        own = [n for n, whose in enumerate(tenants) if tenant in (None, whose) and n >= first]
        found, at = [], first
        while at is not None:
            page = entries.select(
                EntrySelection(at, most, tenant, is_of_tenant_only=tenant is not None)
            )
            assert len(page.entries) <= most
            found += check(page)
            at = page.next
        assert found == own


def test_a_reference_that_could_name_another_party_is_withheld_from_a_tenant(
    tmp_path: Path,
) -> None:
    claim = "slurm/n1/speech-job/GPU-0/1"
    open_ = draft({"tenant": "vision", "number": 0, "claim": "c"}, references=("frame/n1/1", "c"))
    closed = draft({"tenant": "vision", "number": 1}, references=("frame/n1/1", claim))
    log_of(tmp_path, [open_, closed])
    entries = SignedEntries(opened(tmp_path), KEY.public)
    own = entries.select(EntrySelection(0, 100, "vision", is_of_tenant_only=True))
    assert check(own) == [0, 1]
    shown = msgspec.json.encode(own)
    assert claim.encode() not in shown
    assert own.entries[1].withheld == ("ref",)
    assert base64.b64encode(claim.encode())[:-4] not in shown
    assert entries.make_proof(1, "vision") is None
    assert claim.encode() in msgspec.json.encode(entries.select(EntrySelection(0, 100, "vision")))


def test_an_entry_that_is_hidden_from_its_tenant_is_found(tmp_path: Path) -> None:
    log_of(tmp_path, [of("vision", 0), of("speech", 1), of("vision", 2)])
    with database_in(tmp_path) as database, database.transaction(writes=True) as connection:
        without_triggers(connection, of_log=True)
        connection.execute(text("DELETE FROM audit_tenant WHERE number = 2"))
    with (
        database_in(tmp_path) as database,
        pytest.raises(LogVerificationError, match="records of the tenant vision"),
    ):
        verify_log(database.transaction, KEY.public)


def test_a_proof_fits_the_command_and_requires_access(tmp_path: Path) -> None:
    log_of(tmp_path, [of("vision", 0), of("speech", 1), of("", 2)])
    entries = SignedEntries(opened(tmp_path), KEY.public)
    proof = entries.make_proof(0, "vision")
    assert proof
    assert json.loads(check_proof(proof, KEY.public))["data"]["number"] == 0
    assert entries.make_proof(1, "vision") is entries.make_proof(2, "vision") is None
    assert entries.make_proof(99, "vision") is entries.make_proof(99, None) is None
    assert all(entries.make_proof(index, None) for index in range(3))


def test_consistency_proofs_cover_the_growth_of_a_log(tmp_path: Path) -> None:
    signed = log_of(tmp_path, *([of("", n) for n in range(count)] for count in (3, 1, 300, 7)))
    entries = SignedEntries(opened(tmp_path), KEY.public)
    for tree in signed:
        found = entries.make_consistency_proof(tree.size)
        assert found
        now = read_checkpoint(found.checkpoint, KEY.public).tree
        proof = [base64.b64decode(one) for one in found.proof]
        assert consistent(tree, now, proof)
    assert entries.make_consistency_proof(signed[-1].size + 1) is None
