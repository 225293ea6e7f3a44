"""An agent never discards its checkpoints, regardless of the collector's answers."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, strategies as st
from support.clock import ManualClock
from support.examples import fewer_examples

from railscope.audit.cosignature import cosignature_seconds, parse_witness_key
from railscope.audit.log_checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import (
    CompactRange,
    TreeHead,
    consistency_proof,
    leaf_hash,
    node_hash,
)
from railscope.audit.signed_note import SecretKey
from railscope_agent.config import WitnessSettings
from railscope_agent.sampling.shipping_stats import CONFLICT, CONSISTENT, AuditLogState
from railscope_agent.witness.audit_log_client import CheckpointOffer, ReportedConflictError
from railscope_agent.witness.audit_witness import AuditWitness
from railscope_agent.witness.witness_store import WitnessStore

KEY = SecretKey.generate("log.example")


def tree_of(records: list[bytes]) -> TreeHead:
    grown = CompactRange()
    for record in records:
        grown.append(leaf_hash(record))
    return TreeHead(grown.size, grown.root)


@dataclass
class FakeLog:
    """A collector with the key of its log, honest or not."""

    records: list[bytes] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    proof: list[bytes] | None = None
    """Returned instead of the right one."""
    signer: SecretKey = KEY

    async def newest(self) -> CheckpointOffer:
        if not self.records:
            return CheckpointOffer("", must_submit=True)
        return CheckpointOffer(
            Checkpoint(self.signer.name, tree_of(self.records)).sign(self.signer), must_submit=False
        )

    async def key(self) -> str:
        return str(self.signer.public)

    async def consistency(self, old: int, new: int) -> list[bytes]:
        if self.proof is not None:
            return self.proof
        return consistency_proof(self._node, old, new)

    def _node(self, level: int, index: int) -> bytes:
        if level == 0:
            return leaf_hash(self.records[index])
        return node_hash(self._node(level - 1, 2 * index), self._node(level - 1, 2 * index + 1))

    async def submit(self, note: str, key: str) -> None:
        self.shown.append(note)
        if not note:
            return
        assert cosignature_seconds(note, parse_witness_key(key)) > 0
        held = read_checkpoint(note, self.signer.public).tree
        if held.size > len(self.records) or tree_of(self.records[: held.size]) != held:
            message = "never had that"
            raise ReportedConflictError(message)

    async def close(self) -> None:
        return


def witness_of(
    directory: Path, log: FakeLog, store: WitnessStore | None = None, keys: str = ""
) -> AuditWitness:
    made = AuditWitness(
        WitnessSettings(log_key=keys),
        "node-1",
        log,
        store or WitnessStore(directory),
        ManualClock(),
        [],
        AuditLogState(),  # type: ignore[arg-type] - only what the service calls
    )
    made._open()  # noqa: SLF001 - as `run` does first
    return made


steps = st.lists(
    st.tuples(st.sampled_from(["grow", "back", "fork", "restart"]), st.integers(1, 9)), max_size=12
)


@fewer_examples(40)
@given(steps)
def test_the_held_checkpoint_never_regresses_and_every_contradiction_is_detected(
    steps: list[tuple[str, int]],
) -> None:
    async def follow(directory: Path) -> None:
        log = FakeLog()
        witness = witness_of(directory, log)
        held: list[bytes] = []
        for number, (what, count) in enumerate(steps):
            if what == "grow":
                log.records += [b"%d/%d" % (number, n) for n in range(count)]
            elif what == "back":
                del log.records[-count:]
            elif what == "fork":
                log.records[-count:] = [b"other %d/%d" % (number, n) for n in range(count + 3)]
            else:
                witness = witness_of(directory, log)
            await witness.check()
            honest = log.records[: len(held)] == held
            if honest:
                held = list(log.records)
            assert witness.state.state == (CONFLICT if not honest else CONSISTENT if held else 0)
            note = witness.store.read_checkpoint()
            assert bool(note) == bool(held)
            if note:
                assert read_checkpoint(note, KEY.public).tree == tree_of(held)
            if not honest:
                assert log.shown[-1] == note
                assert witness.events

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(Path(directory)))


@fewer_examples(40)
@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 20), st.integers(1, 20))
def test_no_made_up_proof_moves_it_to_another_log(proof: list[bytes], size: int, more: int) -> None:
    async def follow(directory: Path) -> None:
        log = FakeLog([b"%d" % n for n in range(size)])
        witness = witness_of(directory, log)
        await witness.check()
        held = witness.store.read_checkpoint()
        log.records = [b"other %d" % n for n in range(size + more)]
        log.proof = proof
        await witness.check()
        assert (witness.state.state, witness.store.read_checkpoint()) == (CONFLICT, held)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(Path(directory)))


async def test_a_contradiction_is_reported_once_for_the_held_checkpoint(tmp_path: Path) -> None:
    log = FakeLog([b"%d" % n for n in range(10)])
    witness = witness_of(tmp_path, log)
    await witness.check()
    del log.records[-1]
    for _ in range(3):
        await witness.check()
    assert len(witness.events) == 1
    for number in range(20):
        log.records[-1] = b"version %d" % number
        await witness.check()
    assert len(list((tmp_path / "evidence").iterdir())) == 1
    assert len(witness.events) == 1, "ever new offers for one held checkpoint are one conflict"


URL, OTHER_URL = "https://a:9470", "https://b:9470/"
OTHER_KEY = SecretKey.generate("log.example")


def store_of(directory: Path, url: str, *, is_only: bool = False) -> WitnessStore:
    return WitnessStore.for_collector(directory, url, is_only=is_only)


async def test_each_collector_has_its_own_log(tmp_path: Path) -> None:
    logs = {URL: FakeLog([b"1", b"2", b"3"]), OTHER_URL: FakeLog([b"x"], signer=OTHER_KEY)}
    for _ in range(3):
        witnesses = [
            witness_of(tmp_path, log, store_of(tmp_path, url)) for url, log in logs.items()
        ]
        for witness, log in zip(witnesses, logs.values(), strict=True):
            await witness.check()
            log.records.append(b"next")
            await witness.check()
            assert witness.state == AuditLogState(CONSISTENT, len(log.records))
            assert witness.events == []
    assert len(list(tmp_path.glob("log-*"))) == 2
    assert len(list(tmp_path.rglob("witness.key"))) == 1, "the same key for all logs"


async def test_a_rewritten_log_is_still_detected(tmp_path: Path) -> None:
    for url, log in {URL: FakeLog([b"1", b"2"]), OTHER_URL: FakeLog([b"x"])}.items():
        await witness_of(tmp_path, log, store_of(tmp_path, url)).check()
    for rewritten in (
        FakeLog([b"1"]),
        FakeLog([b"1", b"other", b"3"]),
        FakeLog([b"1", b"2"], signer=OTHER_KEY),
    ):
        witness = witness_of(tmp_path, rewritten, store_of(tmp_path, URL))
        await witness.check()
        assert witness.state.state == CONFLICT
