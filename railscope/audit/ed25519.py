"""Ed25519 by the OpenSSL library that Python's hashlib is linked with.

The package cryptography contains another OpenSSL, which takes 8 MiB of memory in every agent with a collector.
It is used only where the library of Python cannot be called or does not support Ed25519 (FIPS mode).

A key is its 32 bytes: the seed of a secret key (RFC 8032, 5.1.5), the encoded point of a public key.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_EVP_PKEY_ED25519 = 1087  # NID_ED25519 of <openssl/obj_mac.h>
_POINTER, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_FUNCTIONS = {
    "EVP_PKEY_new_raw_private_key": (_POINTER, ctypes.c_int, _POINTER, _TEXT, _SIZE),
    "EVP_PKEY_new_raw_public_key": (_POINTER, ctypes.c_int, _POINTER, _TEXT, _SIZE),
    "EVP_PKEY_get_raw_public_key": (ctypes.c_int, _POINTER, _POINTER, _POINTER),
    "EVP_PKEY_free": (None, _POINTER),
    "EVP_MD_CTX_new": (_POINTER,),
    "EVP_MD_CTX_free": (None, _POINTER),
    "ERR_clear_error": (None,),
    "EVP_DigestSignInit": (ctypes.c_int, *[_POINTER] * 5),
    "EVP_DigestSign": (ctypes.c_int, _POINTER, _POINTER, _POINTER, _TEXT, _SIZE),
    "EVP_DigestVerifyInit": (ctypes.c_int, *[_POINTER] * 5),
    "EVP_DigestVerify": (ctypes.c_int, _POINTER, _TEXT, _SIZE, _TEXT, _SIZE),
}
"""Result and arguments of the functions, by <openssl/evp.h> of OpenSSL 1.1.1 and later."""
_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
"""First test vector of RFC 8032, 7.1."""


class OpensslKeys:
    """Ed25519 by a loaded OpenSSL library. Raises AttributeError without one of its functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a secret key."""
        raw, length = ctypes.create_string_buffer(KEY_BYTES), _SIZE(KEY_BYTES)
        with self._key(self._library.EVP_PKEY_new_raw_private_key, seed) as key:
            _check(self._library.EVP_PKEY_get_raw_public_key(key, raw, ctypes.byref(length)))
        return raw.raw

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""
        raw, length = ctypes.create_string_buffer(SIGNATURE_BYTES), _SIZE(SIGNATURE_BYTES)
        library = self._library
        with (
            self._key(library.EVP_PKEY_new_raw_private_key, seed) as key,
            self._context() as hashed,
        ):
            _check(library.EVP_DigestSignInit(hashed, None, None, None, key))
            _check(library.EVP_DigestSign(hashed, raw, ctypes.byref(length), message, len(message)))
        return raw.raw

    def verify(self, public: bytes, signature: bytes, message: bytes) -> bool:
        """Return True if a signature of a message is valid."""
        library = self._library
        with (
            self._key(library.EVP_PKEY_new_raw_public_key, public) as key,
            self._context() as hashed,
        ):
            _check(library.EVP_DigestVerifyInit(hashed, None, None, None, key))
            verified: int = library.EVP_DigestVerify(
                hashed, signature, len(signature), message, len(message)
            )
        return verified == 1

    @contextmanager
    def _key(self, create: Callable[..., int | None], raw: bytes) -> Iterator[int | None]:
        if len(raw) != KEY_BYTES:
            message = f"invalid length of an Ed25519 key: {len(raw)}: expected {KEY_BYTES} bytes"
            raise ValueError(message)
        key = create(_EVP_PKEY_ED25519, None, raw, len(raw))
        try:
            _check(key is not None)
            yield key
        finally:
            self._library.EVP_PKEY_free(key)
            # The ssl module would report an error left by this thread as one of its connection.
            self._library.ERR_clear_error()

    @contextmanager
    def _context(self) -> Iterator[int]:
        hashed = self._library.EVP_MD_CTX_new()
        try:
            yield hashed
        finally:
            self._library.EVP_MD_CTX_free(hashed)


def _check(result: int) -> None:
    if result != 1:
        message = "OpenSSL cannot compute Ed25519"
        raise OSError(message)


class CryptographyKeys:
    """Ed25519 by the package cryptography."""

    def __init__(self) -> None:
        from cryptography import exceptions  # noqa: PLC0415 - see the module's docstring
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - as above

        self._keys, self._invalid = ed25519, exceptions.InvalidSignature

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a secret key."""
        return self._keys.Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()

    def sign(self, seed: bytes, message: bytes) -> bytes:
        """Return the signature of a message."""
        return self._keys.Ed25519PrivateKey.from_private_bytes(seed).sign(message)

    def verify(self, public: bytes, signature: bytes, message: bytes) -> bool:
        """Return True if a signature of a message is valid."""
        with suppress(self._invalid):
            self._keys.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
            return True
        return False


@cache
def signature_keys(module: str = "_hashlib") -> OpensslKeys | CryptographyKeys:
    """Return Ed25519 by the library that a module of Python is linked with, if it computes a known key."""
    found = find_spec(module)
    with suppress(AttributeError, OSError):
        keys = OpensslKeys(ctypes.CDLL(found.origin if found and found.origin else module))
        if keys.public_key(_SEED) == _PUBLIC:
            return keys
    return CryptographyKeys()
