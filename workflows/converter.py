"""The data converter: pydantic's, except that what cannot be decoded as input of ours arrives as a mark, not as an exception.

Otherwise one undecodable payload wedges a run: a start that fails to decode is tried again for ever, and its workflow id,
which is the intent's, would hang every later proposal.
"""

from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter

UNDECODABLE = "<undecodable payload>"  # a text, so that every reader of ours refuses it as "not a JSON object"


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Strict wherever a type is expected; tolerant for `*args: Any`, whose readers check everything themselves."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See Temporal's converters."""
        if type_hints and any(hint is not None and hint is not Any for hint in type_hints):
            return super().from_payloads(payloads, type_hints)
        values: list[Any] = []
        for payload in payloads:
            try:
                values += super().from_payloads([payload], None)
            except (RuntimeError, KeyError, ValueError):
                values.append(UNDECODABLE)
        return values


data_converter = DataConverter(payload_converter_class=TolerantPayloadConverter)
