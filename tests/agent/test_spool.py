"""The spool: no envelope is removed without a request, and every drop is reported."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from railscope.wire import WireSchema
from railscope_agent.shipping.schema_store import SchemaStore
from railscope_agent.shipping.spool import FrameLoss, Spool, SpooledEnvelope

PLENTY = 1 << 20
HEAD = 8


def next_body(spool: Spool) -> bytes | None:
    """Remove and return the oldest body; None if the spool is empty."""
    found = spool.oldest()
    assert not isinstance(found, FrameLoss)
    if found is None:
        return None
    spool.remove(found[0])
    return found[1]


def loss_of(spool: Spool) -> FrameLoss:
    found = spool.oldest()
    assert isinstance(found, FrameLoss)
    return found


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.envelope"))


def test_first_in_first_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path, PLENTY)
    for body in (b"a", b"bb", b""):
        assert spool.put(body, frames=3) is None
    assert (len(spool), spool.size) == (3, 3 * HEAD + 3)
    assert [next_body(spool) for _ in range(4)] == [b"a", b"bb", b"", None]
    assert (len(spool), spool.size, files(tmp_path)) == (0, 0, [])


def test_an_envelope_stays_until_it_is_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, PLENTY)
    spool.put(b"a", frames=7)
    assert spool.oldest() == spool.oldest() == (SpooledEnvelope(1, HEAD + 1, 7), b"a")


def test_it_survives_the_agent(tmp_path: Path) -> None:
    spool = Spool(tmp_path, PLENTY)
    spool.put(b"a", frames=1)
    spool.put(b"b", frames=2)
    next_body(spool)
    again = Spool(tmp_path, PLENTY)
    again.put(b"c", frames=3)
    assert again.oldest() == (SpooledEnvelope(2, HEAD + 1, 2), b"b")
    assert [next_body(again), next_body(again)] == [b"b", b"c"]


def test_the_oldest_envelope_is_dropped_and_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=100)
    for number in range(4):
        assert spool.put(bytes([number]) * 17, frames=10 + number) is None
    assert spool.put(b"x" * 40, frames=99) == FrameLoss("spool_full", envelopes=2, frames=10 + 11)
    assert [next_body(spool) for _ in range(3)] == [b"\2" * 17, b"\3" * 17, b"x" * 40]


def test_an_envelope_dropped_while_in_flight_is_lost_and_not_also_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=50)
    spool.put(b"a" * 17, frames=5)
    under_way = spool.oldest()
    assert isinstance(under_way, tuple)
    assert spool.put(b"b" * 40, frames=7) == FrameLoss("spool_full", envelopes=1, frames=5)
    assert spool.remove(under_way[0]) is False
    (left, _) = spool.oldest() or (None, b"")  # type: ignore[misc]  # not None: nothing was lost
    assert left is not None
    assert spool.remove(left) is True


OPERATIONS = st.lists(st.none() | st.just("reopen") | st.integers(0, 40), max_size=40)


@given(OPERATIONS)
def test_it_is_a_bounded_queue(
    tmp_path_factory: pytest.TempPathFactory, operations: list[int | str | None]
) -> None:
    """Put a body of a size, take one (None), or restart the agent: as a plain queue would."""
    directory = tmp_path_factory.mktemp("spool")
    spool, model, number = Spool(directory, 150), deque[bytes](), 0
    for operation in operations:
        if operation is None:
            assert next_body(spool) == (model.popleft() if model else None)
        elif isinstance(operation, str):
            spool = Spool(directory, 150)
        else:
            number += 1
            body = number.to_bytes(2, "little") + bytes(operation)
            dropped = 0
            while model and sum(HEAD + len(kept) for kept in [*model, body]) > 150:
                model.popleft()
                dropped += 1
            model.append(body)
            loss = spool.put(body, frames=1)
            assert (loss.frames if loss else 0) == dropped
        assert spool.size == sum(HEAD + len(kept) for kept in model)
    assert [next_body(spool) for _ in model] == list(model)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff"),
        lambda file: file.write_bytes(file.read_bytes()[:-3]),
        lambda file: file.write_bytes(file.read_bytes() + b"more"),
        lambda file: file.write_bytes(b"\0"),
        lambda file: file.unlink(),
    ],
    ids=["flipped", "cut", "longer", "no head", "vanished"],
)
def test_a_damaged_envelope_is_given_up_and_reported(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    spool = Spool(tmp_path, PLENTY)
    spool.put(b"first", frames=5)
    spool.put(b"second", frames=6)
    damage(files(tmp_path)[0])
    assert loss_of(spool) == FrameLoss("damaged", envelopes=1, frames=5)
    assert next_body(spool) == b"second"
    assert files(tmp_path) == []


def test_damage_is_found_after_a_restart_as_well(tmp_path: Path) -> None:
    Spool(tmp_path, PLENTY).put(b"body", frames=5)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    spool = Spool(tmp_path, PLENTY)
    assert loss_of(spool) == FrameLoss("damaged", envelopes=1, frames=5)
    assert next_body(spool) is None


def test_partial_files_are_deleted_and_foreign_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "000000000009.envelope.0123abcd.partial").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "x.envelope").write_text("not ours either")
    spool = Spool(tmp_path, PLENTY)
    assert len(spool) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"notes.txt", "x.envelope"}


def test_an_envelope_that_cannot_be_read_now_stays(tmp_path: Path) -> None:
    spool = Spool(tmp_path, PLENTY)
    spool.put(b"a", frames=3)
    (file,) = files(tmp_path)
    file.rename(tmp_path / "aside")
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        spool.oldest()
    assert len(spool) == 1
    file.rmdir()
    (tmp_path / "aside").rename(file)
    assert next_body(spool) == b"a"


def test_an_envelope_that_cannot_be_removed_is_dropped_and_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path, PLENTY)
    spool.put(b"a", frames=3)
    (file,) = files(tmp_path)
    file.unlink()
    file.mkdir()
    with capture_logs() as logs:
        spool.remove(SpooledEnvelope(1, HEAD + 1, 3))
    assert [(entry["event"], entry["file"]) for entry in logs] == [
        ("envelope_removal_failed", str(file))
    ]
    assert (len(spool), spool.size) == (0, 0)


# A disk that is full ------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_and_leaves_no_rubbish(small_disk: Path) -> None:
    spool = Spool(small_disk, PLENTY)
    spool.put(b"k" * 40_000, frames=1)
    with pytest.raises(OSError, match="No space left") as raised:
        spool.put(b"l" * 40_000, frames=2)
    assert raised.value.errno == errno.ENOSPC
    assert (len(spool), len(files(small_disk))) == (1, 1)
    assert list(small_disk.glob("*.partial")) == []
    assert next_body(spool) == b"k" * 40_000
    assert spool.put(b"l" * 40_000, frames=2) is None


def test_an_envelope_dropped_in_vain_is_still_reported(tmp_path: Path) -> None:
    """The bound drops the oldest, then the new envelope cannot be written either."""
    spool = Spool(tmp_path, max_bytes=100)
    spool.put(b"a" * 60, frames=3)
    in_the_way = tmp_path / "000000000002.envelope"
    in_the_way.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="directory"):
            spool.put(b"b" * 60, frames=4)
    in_the_way.rmdir()
    assert loss_of(spool) == FrameLoss("spool_full", envelopes=1, frames=3)
    assert spool.oldest() is None


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        Spool(tmp_path / "file" / "spool", PLENTY)


# Schemas beside it --------------------------------------------------------------------------------


SCHEMA = WireSchema("gpu", (), ())
DIGEST = b"\1" * 16


def test_a_schema_is_kept_for_the_next_run(tmp_path: Path) -> None:
    SchemaStore(tmp_path).put(DIGEST, lambda: SCHEMA)
    assert SchemaStore(tmp_path).get(DIGEST) == SCHEMA
    assert SchemaStore(tmp_path).get(b"\2" * 16) is None


@pytest.mark.parametrize("content", [b"", b"\x82", b"\x83\xa6stream\xa2\xff\xfe"])
def test_a_damaged_schema_is_none(tmp_path: Path, content: bytes) -> None:
    SchemaStore(tmp_path).put(DIGEST, lambda: SCHEMA)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert SchemaStore(tmp_path).get(DIGEST) is None


def test_a_schema_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """Otherwise the next run could not name the columns of the spooled frames."""
    store = SchemaStore(tmp_path)
    in_the_way = tmp_path / (DIGEST.hex() + ".schema")
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        store.put(DIGEST, lambda: SCHEMA)
    assert store.get(DIGEST) == SCHEMA, "in memory at least"
    in_the_way.rmdir()
    store.put(DIGEST, lambda: SCHEMA)
    assert SchemaStore(tmp_path).get(DIGEST) == SCHEMA


def test_schemas_are_bounded(tmp_path: Path) -> None:
    store = SchemaStore(tmp_path)
    for number in range(300):
        store.put(number.to_bytes(16, "little"), lambda: SCHEMA)
    assert len(list(tmp_path.iterdir())) == 256
    assert store.get((299).to_bytes(16, "little")) == SCHEMA
    assert store.get((0).to_bytes(16, "little")) is None
