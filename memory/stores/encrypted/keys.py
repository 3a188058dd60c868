"""Encryption of texts with users' keys, and the cache of keys.

Texts are encrypted with AES-256-GCM. An encrypted text is `tw1:<user id>:<digest of the key, nonce, ciphertext, tag>`,
with both parts in base64. It names its user, because the reader of a block knows only the block's position, and keys
are fetched by user id. The rows of sessions have the user id in plain text anyway. The kind, the position and the user
of a text are authenticated with it, so a text cannot replace another one. The nonce is random, so a key can encrypt
2**32 texts. If a text must encrypt to the same result each time, its nonce is derived from the text and its position,
with a key for this purpose.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from typing import NamedTuple

from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    KeyMissingError,
    NotEncryptedError,
    StoreError,
    WrongKeyError,
)
from turnwise.memory.stores.encrypted.settings import KEY_BYTES, Encryption

PREFIX = "tw1:"

_DIGEST = 8
_NONCE = 12
_TAG = 16

OVERHEAD_BYTES = _DIGEST + _NONCE + _TAG
"""How many bytes `UserKey.seal_bytes` adds."""

_MAX_CACHED = 10_000
"""The most keys that are cached."""


class Place(NamedTuple):
    """The kind and the position of an encrypted text."""

    kind: str
    name: str
    """For errors."""
    bound: tuple[str | int | None, ...]
    """An unambiguous name of the position."""

    @property
    def record(self) -> str:
        return f"{self.kind} {self.name}"


class UserKey:
    """Encryption and decryption with one user's key. Each purpose uses a key that is derived from it."""

    def __init__(self, user_id: str, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._user_id = user_id
        self._cipher = AESGCM(_derived(key, "texts"))
        self._nonces = _derived(key, "nonces")
        self._digest = _derived(key, "digest")[:_DIGEST]
        self._contents = _derived(key, "contents")
        self._head = f"{PREFIX}{_base64(_bytes(user_id))}:"

    def seal(self, place: Place, text: str, *, repeatable: bool = False) -> str:
        """Return the encrypted text. If it is `repeatable`, equal texts at one place give equal results."""
        plain, about = _bytes(text), self._about(place)
        if repeatable:
            nonce = hmac.digest(self._nonces, len(about).to_bytes(8, "big") + about + plain, "sha256")[:_NONCE]
        else:
            nonce = os.urandom(_NONCE)
        sealed = self._digest + nonce + self._cipher.encrypt(nonce, plain, about)
        return self._head + _base64(sealed)

    def open(self, place: Place, sealed: bytes) -> str:
        """Return the decrypted text.

        Raises:
            WrongKeyError: it was encrypted with another key.
            CorruptRecordError: it was changed, or encrypted for another place.
        """
        return _text(self.open_bytes(place, sealed))

    def seal_bytes(self, place: Place, data: bytes) -> bytes:
        """Return encrypted bytes, which are `OVERHEAD_BYTES` longer."""
        nonce = os.urandom(_NONCE)
        return self._digest + nonce + self._cipher.encrypt(nonce, data, self._about(place))

    def open_bytes(self, place: Place, sealed: bytes) -> bytes:
        """Return the bytes that `seal_bytes` encrypted; raises as `open` does."""
        from cryptography.exceptions import InvalidTag

        if sealed[:_DIGEST] != self._digest:
            raise WrongKeyError(place.record, self._user_id)
        nonce, rest = sealed[_DIGEST : _DIGEST + _NONCE], sealed[_DIGEST + _NONCE :]
        try:
            return self._cipher.decrypt(nonce, rest, self._about(place))
        except (InvalidTag, ValueError) as error:
            reason = "it was changed after its encryption, or moved here from another place"
            raise CorruptRecordError(place.record, reason) from error

    def digest_of(self, digest: str) -> str:
        """Return a digest of a content's digest that nobody without the key can make."""
        return hmac.digest(self._contents, _bytes(digest), "sha256").hex()

    def _about(self, place: Place) -> bytes:
        return json.dumps([self._user_id, place.kind, *place.bound]).encode()


class KeyRing:
    """The cache of keys that a process has fetched. For use on one event loop.

    Raises:
        ConfigError: `cryptography` is not installed.
    """

    def __init__(self, encryption: Encryption) -> None:
        try:
            import cryptography  # noqa: F401 - checks that it is installed
        except ImportError as error:
            reason = "the package cryptography is missing: pip install turnwise[encryption]"
            raise ConfigError("encryption", encryption, reason) from error
        self._encryption = encryption
        self._cached: dict[str, tuple[float, UserKey]] = {}
        """By user id: the end of its use, by the monotonic clock, and the key. Oldest first."""

    async def of(self, user_id: str) -> UserKey:
        """Return the user's key, fetched at most `cache_s` seconds ago.

        Raises:
            KeyMissingError: the user has no key.
            StoreError: the key could not be fetched.
            ConfigError: the fetched value is not a key.
        """
        now_s = time.monotonic()
        until_s, cached = self._cached.get(user_id, (0.0, None))
        if cached and now_s < until_s:
            return cached
        self._cached.pop(user_id, None)
        try:
            key = await asyncio.to_thread(self._encryption.key, user_id)
        except KeyError:
            key = None
        except Exception as error:
            # The message of the error is left out, since it may have secrets.
            reason = f"the key of user {user_id!r} could not be fetched ({type(error).__name__}): try again"
            raise StoreError(reason) from error
        if key is None:
            raise KeyMissingError(user_id)
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            shown_key = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
            raise ConfigError(f"the key of user {user_id!r}", shown_key, f"must be {KEY_BYTES} bytes")
        user_key = UserKey(user_id, key)
        if self._encryption.cache_s:
            self._cached[user_id] = (now_s + self._encryption.cache_s, user_key)
            if len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return user_key


class Unsealing:
    """Decrypts the texts that one method returns. Fetches each key once."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._user_keys: dict[str, UserKey] = {}

    async def open(self, place: Place, sealed: object) -> str:
        """Return the decrypted text.

        Raises:
            NotEncryptedError: it is not encrypted.
            KeyMissingError, StoreError: its user has no key, or the key cannot be fetched.
            WrongKeyError, CorruptRecordError: it was not encrypted for this place with the user's key, or was changed.
        """
        if not isinstance(sealed, str) or not sealed.startswith(PREFIX):
            raise NotEncryptedError(place.record)
        name, _, body = sealed.removeprefix(PREFIX).partition(":")
        try:
            user_id, sealed_text = _text(_unbase64(name)), _unbase64(body)
        except (binascii.Error, ValueError) as error:
            raise CorruptRecordError(place.record, "it was cut off, or changed after its encryption") from error
        if user_id not in self._user_keys:
            self._user_keys[user_id] = await self._keys.of(user_id)
        return self._user_keys[user_id].open(place, sealed_text)


def _derived(key: bytes, use: str) -> bytes:
    return hmac.digest(key, f"turnwise 1 {use}".encode(), hashlib.sha256)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)
