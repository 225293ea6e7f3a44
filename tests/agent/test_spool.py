"""The spool: no envelope is removed without a request, and every drop is reported."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope_agent.shipping.names_store import NamesStore
from railscope_agent.shipping.spool import FrameLoss, Spool

PLENTY = 1 << 20
HEAD = 8


def next_body(spool: Spool) -> bytes | None:
    """Remove and return the oldest body; None if the spool is empty."""
    found = spool.oldest()
    if found is None:
        return None
    spool.remove(found[0])
    return found[1]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.envelope"))


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
            spool.put(body, frames=1)
            assert sum(loss.frames for loss in spool.take_losses()) == dropped
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
    assert next_body(spool) == b"second"
    assert spool.take_losses() == [FrameLoss("damaged", envelopes=1, frames=5)]
    assert files(tmp_path) == []


def test_partial_files_are_deleted_and_foreign_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "000000000009.envelope.0123abcd.partial").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "x.envelope").write_text("not ours either")
    spool = Spool(tmp_path, PLENTY)
    assert len(spool) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"notes.txt", "x.envelope"}


def test_a_full_disk_is_an_error_and_leaves_no_rubbish(small_disk: Path) -> None:
    spool = Spool(small_disk, PLENTY)
    spool.put(b"k" * 40_000, frames=1)
    with pytest.raises(OSError, match="No space left") as raised:
        spool.put(b"l" * 40_000, frames=2)
    assert raised.value.errno == errno.ENOSPC
    assert (len(spool), len(files(small_disk))) == (1, 1)
    assert list(small_disk.glob("*.partial")) == []
    assert next_body(spool) == b"k" * 40_000
    spool.put(b"l" * 40_000, frames=2)


def test_names_are_bounded(tmp_path: Path) -> None:
    store = NamesStore(tmp_path)
    for number in range(1100):
        store.put(number.to_bytes(16, "little"), b"names")
    assert len(list(tmp_path.iterdir())) == 1024
    assert store.get((1099).to_bytes(16, "little")) == b"names"
    assert store.get((0).to_bytes(16, "little")) is None
