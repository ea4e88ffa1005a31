"""Everything that somebody can put into a signal, an update or a start: through the real server, as raw payloads."""

from temporalio.api.common.v1 import Payload


def _json(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=text.encode())


# The thirteen of facts/temporal.md, section 3.1, by name.
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
    "huge_text": [_json('{"statement": "' + "x" * 500_000 + '", "scheme": "jws", "proof": "x"}')],
}
