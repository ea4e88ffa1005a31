"""Encrypts what Temporal keeps: payloads become AES-256-GCM under a named key, and back.

A payload that cannot be decrypted passes through as it came, since an error here would stop its workflow. So whoever may
write to the namespace wedges nothing with it: the converter turns it into a mark where anything may come, and refuses it
where a type is expected.

1. The key's id stands in the metadata in clear, as anybody who is to decrypt must find the key. It is bound to the bytes.
2. Nothing binds a payload to its workflow: it may be copied into another one. What counts is signed inside, for one operation.
3. Nonces are random, so one key should encrypt fewer than 2^32 payloads (some hundred million operations).
"""

import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
KEY_BYTES = 32
NONCE_BYTES = 12
_BOUND = b"effect-ledger/payload/v1\n"  # what else is authenticated, before the key's id


class EncryptionCodec(PayloadCodec):
    """The first key encrypts, each decrypts. With `encrypts=False` none encrypts: for the days before and after."""

    def __init__(self, keys: Mapping[str, bytes], *, encrypts: bool = True) -> None:
        """`keys` by their ids, 32 bytes each; ValueError otherwise."""
        if not keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise ValueError(f"give at least one key, of {KEY_BYTES} bytes each")
        self._ciphers = {name.encode(): AESGCM(key) for name, key in keys.items()}
        self._first = next(iter(self._ciphers)) if encrypts else None

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See Temporal's codecs."""
        return [payload if self._first is None else self._sealed(payload, self._first) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """What can be decrypted, decrypted; everything else as it came. Never raises."""
        opened = [(payload, self.opened(payload)) for payload in payloads]
        return [payload if inside is None else inside for payload, inside in opened]

    def opened(self, payload: Payload) -> Payload | None:
        """What was encrypted; None for anything that these keys did not make."""
        key_id, sealed = payload.metadata.get(KEY_ID, b""), payload.data
        cipher = self._ciphers.get(key_id)
        if payload.metadata.get("encoding") != ENCODING or cipher is None:
            return None
        try:
            return Payload.FromString(cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _BOUND + key_id))
        except (InvalidTag, DecodeError, ValueError):
            return None

    def _sealed(self, payload: Payload, key_id: bytes) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._ciphers[key_id].encrypt(nonce, payload.SerializeToString(), _BOUND + key_id)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: key_id}, data=sealed)
