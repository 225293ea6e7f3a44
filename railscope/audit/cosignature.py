"""Cosignatures of witnesses on a checkpoint, with their times."""

from __future__ import annotations

import struct
from urllib.parse import quote

from nacl.exceptions import BadSignatureError

from railscope.audit.signed_note import (
    ForgedError,
    NoteError,
    PublicKey,
    SecretKey,
    UnsignedError,
    signature_line,
    signatures_of,
)

COSIGNATURE = b"\x04"
_TIME = struct.Struct(">Q")
_LATEST = (1 << 63) - 1
_SIGNATURE_BYTES = 64


def key_name(node: str) -> str:
    """The name of a node's witness key."""
    return quote(node, safe="") or "node"


def witness_key(signer: SecretKey) -> PublicKey:
    """Return the public key for verifying a witness's cosignatures."""
    return PublicKey(signer.name, signer.public.key, COSIGNATURE)


def parse_witness_key(text: str) -> PublicKey:
    """Parse a witness's key from its text. Raises NoteError."""
    return PublicKey.parse(text, COSIGNATURE)


def add_cosignature(note: str, signer: SecretKey, seconds: int) -> str:
    """Return the note with the witness's cosignature at this time added. Raises NoteError.

    It confirms the checkpoint, its time, and consistency with all earlier ones: a signature line by a key of
    type 0x04 over `cosignature/v1`, `time <seconds since the epoch>` and the text of the checkpoint. It
    contains the time as eight bytes, big-endian, followed by the signature. Source: C2SP tlog-cosignature.
    """
    key = witness_key(signer)
    text, _ = signatures_of(note, key)
    signature = signer.key.sign(_message(text, seconds)).signature
    return note + signature_line(key, _TIME.pack(seconds) + signature)


def cosignature_seconds(note: str, key: PublicKey) -> int:
    """Return the time of the witness's latest cosignature, in seconds since the epoch.

    Raises UnsignedError without a cosignature of this key, ForgedError if it is not over this text,
    NoteError.
    """
    text, own_signatures = signatures_of(note, key)
    if not own_signatures:
        message = f"no cosignature of {key}"
        raise UnsignedError(message)
    return max(_check_cosignature(text, signature, key) for signature in own_signatures)


def _check_cosignature(text: str, signature: bytes, key: PublicKey) -> int:
    if len(signature) != _TIME.size + _SIGNATURE_BYTES:
        message = f"invalid cosignature of {key.name}: wrong length"
        raise ForgedError(message)
    (seconds,) = _TIME.unpack_from(signature)
    if seconds > _LATEST:
        message = f"invalid cosignature of {key.name}: its time is out of range"
        raise ForgedError(message)
    try:
        key.key.verify(_message(text, seconds), signature[_TIME.size :])
    except (BadSignatureError, ValueError) as error:
        message = f"invalid cosignature of {key.name}: it does not match the text"
        raise ForgedError(message) from error
    return int(seconds)


def _message(text: str, seconds: int) -> bytes:
    if not 0 <= seconds <= _LATEST:
        message = f"invalid time of a cosignature: {seconds}: expected 0 to {_LATEST}"
        raise NoteError(message)
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()
