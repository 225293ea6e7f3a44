"""Ed25519 by Python's OpenSSL and by the package cryptography: the vectors of RFC 8032, equal results."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, strategies as st

from railscope.audit.ed25519 import CryptographyKeys, OpensslKeys, signature_keys

VECTORS = (
    ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"),
    ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
)  # fmt: skip
"""RFC 8032, 7.1: seed, public key, message, signature."""
BOTH = pytest.mark.parametrize("keys", [signature_keys(), CryptographyKeys()])


@BOTH
@pytest.mark.parametrize("vector", VECTORS)
def test_the_vectors_of_the_standard_hold(
    keys: OpensslKeys | CryptographyKeys, vector: tuple[str, ...]
) -> None:
    seed, public, message, signature = map(bytes.fromhex, vector)
    assert keys.public_key(seed) == public
    assert keys.sign(seed, message) == signature
    assert keys.verify(public, signature, message)


@BOTH
@pytest.mark.parametrize("change", [slice(0, 63), slice(0, 0), slice(1, 64)])
def test_a_changed_or_shortened_signature_is_not_valid(
    keys: OpensslKeys | CryptographyKeys, change: slice
) -> None:
    _, public, message, signature = map(bytes.fromhex, VECTORS[1])
    assert not keys.verify(public, signature[change], message)
    assert not keys.verify(public, bytes([signature[0] ^ 1]) + signature[1:], message)
    assert not keys.verify(public, signature, message + b"\0")
    assert not keys.verify(bytes(32), signature, message)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_both_libraries_compute_the_same(seed: bytes, message: bytes) -> None:
    ours, theirs = signature_keys(), CryptographyKeys()
    signature = ours.sign(seed, message)
    assert signature == theirs.sign(seed, message)
    assert ours.public_key(seed) == theirs.public_key(seed)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=80), st.binary(max_size=80))
def test_both_libraries_reject_the_same(public: bytes, signature: bytes, message: bytes) -> None:
    verdicts = {
        keys.verify(public, signature, message) for keys in (signature_keys(), CryptographyKeys())
    }
    assert len(verdicts) == 1


def test_the_library_of_python_is_used_where_it_can_be_called() -> None:
    assert isinstance(signature_keys(), OpensslKeys)
    assert isinstance(signature_keys("_json"), CryptographyKeys)


def test_a_failed_verification_leaves_no_error_for_the_ssl_module() -> None:
    _, public, message, _ = map(bytes.fromhex, VECTORS[1])
    assert not signature_keys().verify(public, bytes(64), message)
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()


@BOTH
def test_a_key_of_another_length_is_rejected(keys: OpensslKeys | CryptographyKeys) -> None:
    with pytest.raises(ValueError, match="32"):
        keys.sign(bytes(31), b"")
    with pytest.raises(ValueError, match="32"):
        keys.verify(bytes(33), bytes(64), b"")
