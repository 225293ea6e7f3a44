"""Cosignatures: the statement of a witness, which only its key can make."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from railscope.audit.cosignature import (
    add_cosignature,
    cosignature_seconds,
    parse_witness_key,
    witness_key,
)
from railscope.audit.log_checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import EMPTY_ROOT, TreeHead
from railscope.audit.signed_note import ForgedError, NoteError, PublicKey, SecretKey, UnsignedError

LOG, NODE, OTHER = (SecretKey.generate(name) for name in ("log.example", "node-1", "node-2"))
CHECKPOINT = Checkpoint("log.example", TreeHead(17, EMPTY_ROOT))
NOTE = CHECKPOINT.sign(LOG)
SEEN = 1_790_000_000


def test_the_cosignature_names_witness_and_time() -> None:
    both = add_cosignature(add_cosignature(NOTE, NODE, SEEN), OTHER, SEEN + 5)
    assert cosignature_seconds(both, witness_key(NODE)) == SEEN
    assert cosignature_seconds(both, witness_key(OTHER)) == SEEN + 5
    assert read_checkpoint(both, LOG.public) == CHECKPOINT
    again = add_cosignature(both, NODE, SEEN + 9)
    assert cosignature_seconds(again, witness_key(NODE)) == SEEN + 9


def test_a_cosignature_has_the_layout_of_the_specification() -> None:
    line = add_cosignature(NOTE, NODE, SEEN).splitlines()[-1]
    name, encoded = line.removeprefix("\N{EM DASH} ").split(" ")
    raw = base64.b64decode(encoded)
    assert (name, len(raw)) == ("node-1", 4 + 8 + 64)
    assert raw[:4] == witness_key(NODE).key_id != NODE.public.key_id
    assert int.from_bytes(raw[4:12], "big") == SEEN
    message = f"cosignature/v1\ntime {SEEN}\n{CHECKPOINT.text}"
    NODE.public.key.verify(message.encode(), raw[12:])


def test_a_key_of_a_witness_survives_its_text_and_is_none_of_a_log() -> None:
    key = witness_key(NODE)
    assert str(parse_witness_key(str(key))) == str(key)
    with pytest.raises(NoteError, match="expected an Ed25519 key of kind 1"):
        PublicKey.parse(str(key))
    with pytest.raises(NoteError, match="kind 4"):
        parse_witness_key(str(NODE.public))


@given(at=st.integers(0, 75), bit=st.integers(0, 7))
def test_no_bit_of_a_cosignature_can_change(at: int, bit: int) -> None:
    head, _, encoded = add_cosignature(NOTE, NODE, SEEN).rstrip("\n").rpartition(" ")
    raw = bytearray(base64.b64decode(encoded))
    raw[at] ^= 1 << bit
    changed = f"{head} {base64.b64encode(raw).decode()}\n"
    with pytest.raises((ForgedError, UnsignedError)):
        cosignature_seconds(changed, witness_key(NODE))


@given(st.integers(0, 10**6).filter(lambda size: size != 17))
def test_a_cosignature_is_over_one_checkpoint(size: int) -> None:
    line = add_cosignature(NOTE, NODE, SEEN).splitlines(keepends=True)[-1]
    other = Checkpoint("log.example", TreeHead(size, EMPTY_ROOT)).sign(LOG)
    with pytest.raises(ForgedError):
        cosignature_seconds(other + line, witness_key(NODE))
