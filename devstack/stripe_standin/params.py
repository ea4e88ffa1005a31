"""Form-encoded parameters: decoding of Stripe's brackets, and the checks that run before execution (never stored)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from devstack.stripe_standin.errors import StripeError

Params = dict[str, Any]

LISTS = frozenset({"expand"})
BOUNDS = frozenset({"gt", "gte", "lt", "lte"})
_NAME = re.compile(r"^([^\[\]]+)((?:\[[^\[\]]*\])*)$")
_INTEGER = re.compile(r"^[+-]?[0-9]{1,15}$")


def decode(*encoded: str) -> Params:
    """Query string and body make one tree; an unreadable name stays whole, so that it is refused as unknown."""
    tree: Params = {}
    for name, value in (pair for text in encoded for pair in parse_qsl(text, keep_blank_values=True)):
        match = _NAME.match(name)
        if match is None:
            tree[name] = value
            continue
        steps = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
        node = tree
        for step in steps[:-1]:
            deeper = node.get(step)
            if not isinstance(deeper, dict):
                deeper = node[step] = {}
            node = deeper
        # `expand[]=a&expand[]=b` has no indexes of its own.
        node[steps[-1] or str(len(node))] = value
    return {
        name: list(value.values()) if name in LISTS and isinstance(value, dict) else value
        for name, value in tree.items()
    }


def digest(params: Params) -> str:
    """Parameters are compared as a tree, so their order on the wire does not matter."""
    return hashlib.sha256(json.dumps(params, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_known(params: Params, known: frozenset[str]) -> None:
    for name in params:
        if name not in known:
            raise StripeError(400, f"Received unknown parameter: {name}", code="parameter_unknown", param=name)


def text(params: Params, name: str) -> str | None:
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise StripeError(400, f"Invalid string: {value}", param=name)
    if value == "":
        raise StripeError(
            400,
            f"You passed an empty string for '{name}'. We assume empty values are an attempt to unset a parameter;"
            f" however '{name}' cannot be unset.",
            code="parameter_invalid_empty",
            param=name,
        )
    return value


def choice(params: Params, name: str, allowed: tuple[str, ...]) -> str | None:
    value = text(params, name)
    if value is not None and value not in allowed:
        raise StripeError(400, f"Invalid {name}: must be one of {', '.join(allowed)}", param=name)
    return value


def boolean(params: Params, name: str) -> bool | None:
    value = text(params, name)
    if value is not None and value not in ("true", "false"):
        raise StripeError(400, f"Invalid boolean: {value}", param=name)
    return None if value is None else value == "true"


def integer(params: Params, name: str, *, least: int | None = None) -> int | None:
    value = text(params, name)
    if value is None:
        return None
    if not _INTEGER.match(value):
        raise StripeError(400, f"Invalid integer: {value}", code="parameter_invalid_integer", param=name)
    if least is not None and int(value) < least:
        raise StripeError(
            400,
            f"This value must be greater than or equal to {least}.",
            code="parameter_invalid_integer",
            param=name,
        )
    return int(value)


def metadata(params: Params) -> dict[str, str]:
    """Limits are 50 keys, 40 characters a key, 500 a value; an empty value unsets a key, an empty whole unsets all."""
    value = params.get("metadata", {})
    if value == "":
        return {}
    if not isinstance(value, dict) or any(not isinstance(item, str) for item in value.values()):
        raise StripeError(400, "Invalid hash", param="metadata")
    if len(value) > 50:
        raise StripeError(400, "Metadata can have at most 50 keys.", param="metadata")
    for key, item in value.items():
        if len(key) > 40:
            raise StripeError(400, f"Metadata keys can be at most 40 characters: {key}", param=f"metadata[{key}]")
        if len(item) > 500:
            raise StripeError(400, "Metadata values can be at most 500 characters.", param=f"metadata[{key}]")
    return dict(value)


def expansions(params: Params) -> list[str]:
    value = params.get("expand", [])
    if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
        raise StripeError(400, "Invalid array", param="expand")
    return value


def bounds(params: Params, name: str) -> dict[str, int]:
    """`created=N` means exactly N; `created[gte]=N` and its kin are bounds."""
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        exact = integer(params, name)
        return {} if exact is None else {"gte": exact, "lte": exact}
    for bound in value:
        if bound not in BOUNDS:
            raise StripeError(
                400, f"Received unknown parameter: {name}[{bound}]", code="parameter_unknown", param=f"{name}[{bound}]"
            )
    found = {bound: integer(value, bound) for bound in value}
    return {bound: number for bound, number in found.items() if number is not None}
