"""Payload encryption: what the first key encrypts, each key decrypts; whatever else comes passes through and raises nothing."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from activities.messages import Progress
from ledger.errors import Refused
from workflows.codec import ENCODING, KEY_ID, EncryptionCodec
from workflows.converter import PLAIN, UNDECODABLE, converter_with, data_converter

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
KEYS = {"key_1": OLD, "key_2": NEW}
PAYLOADS = st.builds(
    lambda metadata, inside: Payload(metadata=metadata, data=inside),
    st.dictionaries(st.text(max_size=8) | st.sampled_from(["encoding", KEY_ID]), st.binary(max_size=20), max_size=3),
    st.binary(max_size=80),
)


def read(name: str) -> str:
    """A secret by its name, as `Secrets` reads it."""
    return base64.b64encode(KEYS[name]).decode()


async def sealed(payload: Payload, keys: Mapping[str, bytes]) -> Payload:
    """As it crosses Temporal."""
    (made,) = await EncryptionCodec(keys).encode([payload])
    return made


@given(PAYLOADS)
async def test_what_is_encrypted_comes_back_whole(payload: Payload) -> None:
    """Metadata included, and nothing of it is left in clear but the key's id. Red: leave the metadata out."""
    made = await sealed(payload, KEYS)
    assert dict(made.metadata) == {"encoding": ENCODING, KEY_ID: b"key_1"}
    assert len(payload.data) < 8 or payload.data not in made.data  # fewer bytes may be there by chance
    assert await EncryptionCodec(KEYS).decode([made]) == [payload]
    assert made.data != (await sealed(payload, KEYS)).data


async def test_the_bytes_are_those_that_the_page_tells_other_languages() -> None:
    """docs/encryption.md, "In a service", done by hand."""
    made = await sealed(Payload(data=b"1"), KEYS)
    told = AESGCM(OLD).decrypt(made.data[:12], made.data[12:], b"effect-ledger/payload/v1\nkey_1")
    assert Payload.FromString(told) == Payload(data=b"1")
    assert (made.metadata["encoding"], made.metadata["encryption-key-id"]) == (b"binary/encrypted", b"key_1")


async def test_the_first_key_encrypts_and_each_decrypts() -> None:
    """A rotation: the new key is known everywhere, then it is the first; what the old one encrypted is read still."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')
    before, after = {"key_1": OLD, "key_2": NEW}, {"key_2": NEW, "key_1": OLD}
    for writer, reader in ((before, after), (after, before)):
        assert await EncryptionCodec(reader).decode([await sealed(payload, writer)]) == [payload]
    only_decrypts = EncryptionCodec(before, encrypts=False)
    assert await only_decrypts.encode([payload]) == [payload]
    assert await only_decrypts.decode([await sealed(payload, after), payload]) == [payload, payload]


@given(PAYLOADS)
async def test_nothing_that_comes_raises(payload: Payload) -> None:
    """What no key of ours made passes through as it came. Red: let `opened` look the key up by its text."""
    assert await EncryptionCodec(KEYS).decode([payload]) == [payload]


async def test_a_changed_payload_is_not_decrypted() -> None:
    """Every byte counts, and so does the id: one key under two names. Red: bind nothing (None) in `encrypt` and `decrypt`."""
    codec = EncryptionCodec({"key_1": OLD, "again": OLD})
    good = await sealed(Payload(data=b"15.00 EUR"), {"key_1": OLD})
    spoiled = [Payload(metadata=good.metadata, data=good.data[:size]) for size in range(len(good.data))]
    for place in range(len(good.data)):
        changed = bytearray(good.data)
        changed[place] ^= 1
        spoiled.append(Payload(metadata=good.metadata, data=bytes(changed)))
    spoiled += [
        Payload(metadata={"encoding": ENCODING, KEY_ID: b"again"}, data=good.data),
        Payload(metadata={"encoding": ENCODING, KEY_ID: b"\xff"}, data=good.data),
        Payload(metadata={"encoding": ENCODING}, data=good.data),
        Payload(metadata={"encoding": b"binary/plain", KEY_ID: b"key_1"}, data=good.data),
        Payload(metadata=good.metadata, data=good.data + b"\0"),
    ]
    assert await codec.decode(spoiled) == spoiled
    assert await EncryptionCodec({"key_1": NEW}).decode([good]) == [good]


@pytest.mark.parametrize("keys", [{}, {"key_1": b"short"}, {"key_1": OLD, "key_2": OLD[:16]}])
def test_a_codec_without_whole_keys_is_not_made(keys: dict[str, bytes]) -> None:
    """AES-128 is not silently used for half a key."""
    with pytest.raises(ValueError, match="32 bytes"):
        EncryptionCodec(keys)


async def test_what_cannot_be_decrypted_is_a_mark_where_anything_may_come_and_refused_elsewhere() -> None:
    """The refusal names the key to put back. Red: let `converter_with` use the plain payload converter."""
    (foreign,) = await converter_with("key_2", read).encode([{"state": "approved"}])
    ours = converter_with("key_1", read)
    assert await ours.decode([foreign], [Any]) == [UNDECODABLE]
    assert await ours.decode([foreign]) == [UNDECODABLE]
    for converter in (ours, data_converter):
        with pytest.raises(Refused, match="the key key_2 is not here") as refused:
            await converter.decode([foreign], [Progress])
        assert refused.value.rule == "payload_unreadable"
    (nameless,) = await ours.encode([{}])
    nameless.metadata[KEY_ID] = b"\x1b[31m"
    with pytest.raises(Refused, match="the key of another kind"):
        await ours.decode([nameless], [Progress])


@pytest.mark.parametrize(
    "payload",
    [
        Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"{}"),
        Payload(
            metadata={
                "encoding": b"json/protobuf",
                "messageType": b"temporal.api.sdk.v1.ExternalStorageReference",
            },
            data=b"{}",
        ),
        Payload(metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=b"{}"),
    ],
)
async def test_what_says_to_lie_in_another_storage_is_a_mark(payload: Payload) -> None:
    """Temporal's own converter raises for it, before codec and converter. Red: use `DataConverter` for ours."""
    for converter in (data_converter, converter_with("key_1", read)):
        assert await converter.decode([payload], [Any]) == [UNDECODABLE]
        with pytest.raises(KeyError):
            await converter.decode([payload], [Progress])


async def test_messages_and_traces_of_errors_are_encrypted_too() -> None:
    """And readable with the key; the type stays, for it is a word of ours. Red: leave out `failure_converter_class`."""
    converter, canary = converter_with("key_2,key_1", read), "canary-4711@example.com"
    failure = Failure()
    try:
        try:
            raise ValueError(canary)
        except ValueError as error:
            raise ApplicationError(f"told of {canary}", canary, type="Refused") from error
    except ApplicationError as error:
        await converter.encode_failure(error, failure)
    assert canary not in str(failure) and failure.application_failure_info.type == "Refused"
    back = await converter.decode_failure(failure)
    assert isinstance(back, ApplicationError) and canary in back.message and back.details == (canary,)


def test_without_names_nothing_is_encrypted() -> None:
    """So that saved histories and small installations need no key; `plain` with keys reads, and writes plain."""
    assert converter_with("", read) is data_converter
    assert converter_with(PLAIN, read) is data_converter
    reading = converter_with("plain,key_1", read)
    assert reading.payload_codec is not None
    assert reading.failure_converter_class is data_converter.failure_converter_class


@pytest.mark.parametrize("names", ["key_1,key_1", "key_1,plain", "key_1,,key_2", "../key", "Key", "key_1,", "k" * 41])
def test_malformed_names_are_refused_before_any_is_read(names: str) -> None:
    """A name is a file's or a variable's, and crosses Temporal in clear."""

    def never(name: str) -> str:
        raise AssertionError(name)

    with pytest.raises(Refused, match="EFFECTS_PAYLOAD_KEYS") as refused:
        converter_with(names, never)
    assert refused.value.rule == "payload_keys_malformed"


@pytest.mark.parametrize("text", ["", "x", "not base64!", base64.b64encode(OLD[:31]).decode(), OLD.hex()])
def test_a_malformed_key_is_refused_and_not_repeated(text: str) -> None:
    """The refusal says how to make one."""
    with pytest.raises(Refused, match="openssl rand -base64 32") as refused:
        converter_with("key_1", lambda name: text)
    assert len(text) < 2 or text not in str(refused.value)
