"""The data converter: pydantic's, except that what cannot be decoded as input of ours arrives as a mark, not as an exception.

Otherwise one undecodable payload wedges a run: a start that fails to decode is tried again for ever, and its workflow id,
which is the intent's, would hang every later proposal. With keys it encrypts as well, see `codec.py`.
"""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes

from ledger.errors import Refused
from workflows.codec import ENCODING, KEY_BYTES, KEY_ID, EncryptionCodec

UNDECODABLE = "<undecodable payload>"  # a text, so that every reader of ours refuses it as "not a JSON object"
PLAIN = "plain"  # in the place of the first key: encrypt nothing
# How Temporal's SDK marks what lies in a storage outside, which we do not have: it would stop the workflow.
_ELSEWHERE = "__temporal_external_storage_reference"
_NAME = re.compile(r"[a-z0-9_]{1,40}")
_NOWHERE = Payload(metadata={"encoding": b"binary/undecodable"})


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Strict wherever a type is expected; tolerant for `*args: Any`, whose readers check everything themselves."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See Temporal's converters. Refused: `payload_unreadable` where a type is expected of what is encrypted still."""
        if type_hints and any(hint is not None and hint is not Any for hint in type_hints):
            for payload in payloads:
                if payload.metadata.get("encoding") == ENCODING:
                    raise _unreadable(payload)
            return super().from_payloads(payloads, type_hints)
        values: list[Any] = []
        for payload in payloads:
            try:
                values += super().from_payloads([payload], None)
            except (RuntimeError, KeyError, ValueError):
                values.append(UNDECODABLE)
        return values


class TolerantConverter(DataConverter):
    """Takes a payload that says to lie in a storage outside for one that cannot be decoded: the SDK raises for it, before
    any codec or converter is asked, and that would stop the workflow for ever.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [_NOWHERE if _lies_elsewhere(payload) else payload for payload in payloads]


def _lies_elsewhere(payload: Payload) -> bool:
    metadata = payload.metadata
    return (
        _ELSEWHERE in metadata
        or metadata.get("encoding") == b"json/external-storage-reference"
        or metadata.get("messageType", b"").endswith(b".ExternalStorageReference")
    )


def _unreadable(payload: Payload) -> Refused:
    key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
    name = key_id if _NAME.fullmatch(key_id) else "of another kind"
    why = f"it is encrypted, and the key {name} is not here or another one: name it in EFFECTS_PAYLOAD_KEYS"
    return Refused("payload_unreadable", why)


data_converter = TolerantConverter(payload_converter_class=TolerantPayloadConverter)


def converter_with(names: str, read: Callable[[str], str]) -> DataConverter:
    """The converter that encrypts with the first of these keys ("key_2,key_1"), and decrypts with each.

    `read` tells a key by its name: 32 bytes in base64. The name becomes the key's id. "plain,key_1" decrypts only, which is
    how encryption is switched on and off while workflows wait. No name at all: no encryption.
    Refused: `payload_keys_malformed`, and whatever `read` raises.
    """
    listed = [name.strip() for name in names.split(",")] if names.strip() else []
    encrypts, known = listed[:1] != [PLAIN], [name for name in listed if name != PLAIN]
    if not all(map(_NAME.fullmatch, known)) or len(set(listed)) != len(listed) or PLAIN in listed[1:]:
        words = "names of secrets with commas between them, each once, of a-z, 0-9 and _; only the first may be `plain`"
        raise Refused("payload_keys_malformed", f"EFFECTS_PAYLOAD_KEYS: {words}", field="EFFECTS_PAYLOAD_KEYS")
    if not known:
        return data_converter
    codec = EncryptionCodec({name: _key(name, read(name)) for name in known}, encrypts=encrypts)
    ours = replace(data_converter, payload_codec=codec)
    if not encrypts:
        return ours
    # Messages and traces of errors may quote what was asked for: they travel as payloads, too.
    return replace(ours, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)


def _key(name: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        words = f"the secret {name} is not {KEY_BYTES} random bytes in base64: make one with `openssl rand -base64 32`"
        raise Refused("payload_keys_malformed", words, field="EFFECTS_PAYLOAD_KEYS")
    return key
