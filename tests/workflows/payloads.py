"""Everything that somebody can put into a signal, an update or a start: through the real server, as raw payloads."""

from temporalio.api.common.v1 import Payload


def _json(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text.encode())


# By name. Wherever the SDK reads one of them before our converter does, it must not stop the workflow.
MALFORMED: dict[str, list[Payload]] = {
    "wrong_shape": [_json('{"approve": true}')],
    "wrong_types": [_json('{"statement": 1, "scheme": [], "proof": {}}')],
    "text": [_json('"approved"')],
    "double_encoded": [_json('"{\\"statement\\": \\"x\\"}"')],
    "broken_json": [_json('{"statement":')],
    "json_null": [_json("null")],
    "empty_box": [],
    "two_payloads": [_json("{}"), _json("{}")],
    "binary_null": [Payload(metadata={"encoding": b"binary/null"})],
    "binary_plain": [Payload(metadata={"encoding": b"binary/plain"}, data=b"\x00\xff")],
    "unknown_encoding": [Payload(metadata={"encoding": b"binary/nobody-knows"}, data=b"x")],
    "no_encoding": [Payload(data=b"x")],
    "in_another_storage": [Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"{}")],
    "said_to_be_in_another_storage": [
        Payload(metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=b"{}")
    ],
    "encrypted_by_nobody": [
        Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"payload_key_1"}, data=b"x" * 40)
    ],
    "huge_text": [_json('{"statement": "' + "x" * 500_000 + '", "scheme": "jws", "proof": "x"}')],
}
