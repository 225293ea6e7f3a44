"""Signed notes and checkpoints: the published example, and notes that must be rejected."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from railscope.audit.log_checkpoint import Checkpoint, CheckpointError, read_checkpoint
from railscope.audit.merkle import EMPTY_ROOT, TreeHead
from railscope.audit.signed_note import (
    NoteError,
    PublicKey,
    SecretKey,
    UnsignedError,
    sign,
    verify_note,
)

PUBLISHED_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
PUBLISHED_SIGNATURE = (
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM="
)
PUBLISHED = f"This is an example message.\n\n— example.com/foo {PUBLISHED_SIGNATURE}\n"
KEY = SecretKey.generate("log.example")


def test_the_published_example_is_verified() -> None:
    key = PublicKey.parse(PUBLISHED_KEY)
    assert str(key) == PUBLISHED_KEY
    assert verify_note(PUBLISHED, key) == "This is an example message.\n"


def test_a_key_survives_its_text() -> None:
    again = SecretKey.parse(KEY.secret_text())
    note = sign("hello\n", again)
    assert verify_note(note, PublicKey.parse(str(KEY.public))) == "hello\n"
    assert KEY.secret_text() not in repr(KEY)


@given(st.integers(0, len(PUBLISHED.encode()) - 1), st.integers(1, 255))
def test_no_note_with_one_byte_changed_is_accepted(at: int, change: int) -> None:
    forged = bytearray(PUBLISHED.encode())
    forged[at] ^= change
    try:
        text = forged.decode()
    except UnicodeDecodeError:
        return
    with pytest.raises(NoteError):
        verify_note(text, PublicKey.parse(PUBLISHED_KEY))


def test_other_signatures_do_not_matter_but_ours_must_be_there() -> None:
    other = SecretKey.generate("other.example")
    both = sign("hello\n", KEY) + sign("hello\n", other).rpartition("\n\n")[2]
    assert verify_note(both, KEY.public) == verify_note(both, other.public) == "hello\n"
    with pytest.raises(UnsignedError, match=r"signed by log\.example"):
        verify_note(sign("hello\n", KEY), other.public)


@pytest.mark.parametrize(
    "text",
    ["", "name", "name+zz+AA==", "name+00000000+!", "a b+00000000+AA==", PUBLISHED_KEY[:-1],
     PUBLISHED_KEY.replace("530d903a", "530d903b"), "n+00000000+" + "A" * 44],
)  # fmt: skip
def test_text_that_is_not_a_key_is_rejected(text: str) -> None:
    with pytest.raises(NoteError):
        PublicKey.parse(text)
    with pytest.raises(NoteError):
        SecretKey.parse("PRIVATE+KEY+" + text)


def test_the_error_does_not_contain_a_rejected_secret_key() -> None:
    secret = KEY.secret_text()
    for broken in (secret[:-1], secret.removeprefix("PRIVATE"), secret.replace(KEY.name, "other")):
        with pytest.raises(NoteError) as caught:
            SecretKey.parse(broken)
        assert secret.split("+", 4)[4][:8] not in str(caught.value)


@given(st.integers(0, 2**63 - 1), st.binary(min_size=32, max_size=32))
def test_a_checkpoint_survives_its_note(size: int, root: bytes) -> None:
    checkpoint = Checkpoint(KEY.name, TreeHead(size, root))
    assert read_checkpoint(checkpoint.sign(KEY), KEY.public) == checkpoint


def test_an_empty_log_has_the_documented_text() -> None:
    text = Checkpoint("log.example", TreeHead(0, EMPTY_ROOT)).text
    assert text == "log.example\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"


ROOT = base64.b64encode(EMPTY_ROOT).decode()


@pytest.mark.parametrize(
    "text",
    ["log.example\n0\n", f"log.example\n00\n{ROOT}\n", f"log.example\n-1\n{ROOT}\n",
     f"log.example\n1\n{ROOT[:-4]}\n", f"log.example\n1\n{ROOT}\nmore\n",
     f"other.example\n1\n{ROOT}\n", f"log.example\n1\n{ROOT[:-2]}V=\n"],
)  # fmt: skip
def test_a_signed_text_that_is_not_a_checkpoint_is_rejected(text: str) -> None:
    with pytest.raises(CheckpointError):
        read_checkpoint(sign(text, KEY), KEY.public)
