"""`register`: what Temporal must know before a worker starts: the namespace, and the search attributes of our workflows."""

import asyncio
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.service import RPCError, RPCStatusCode

from commands.exits import Unsettled
from commands.page import Page
from commands.surroundings import settings
from commands.temporal import Temporal, connected
from commands.voice import Voice
from ledger.errors import Refused
from workflows.operation import SEARCH_ATTRIBUTES

KNOWN_WITHIN_SECONDS = 60.0  # a server reads its namespaces anew every ten seconds
PAUSE_SECONDS = 0.5
Types = dict[str, "IndexedValueType.ValueType"]


async def register(voice: Voice, retention_days: int) -> Page:
    """Make what is missing, and return once a worker would find all of it. What is there stays as it is.

    With `retention_days` the namespace is made too, where it is missing. Refused: `namespace_missing`,
    `search_attribute_differs`.
    """
    temporal = await connected(settings())
    made = await _namespace(temporal, retention_days)
    wanted = {
        key.name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{key.indexed_value_type.name}")
        for key in SEARCH_ATTRIBUTES
    }
    try:
        async with asyncio.timeout(KNOWN_WITHIN_SECONDS):
            added = await _attributes(temporal, wanted)
    except TimeoutError as error:
        told = f"Temporal at {temporal.address} does not list the search attributes yet"
        raise Unsettled(f"{told}: ask again, it makes nothing twice") from error
    namespace = temporal.client.namespace
    page = Page({"namespace": namespace, "made": made, "added": sorted(added), "search_attributes": sorted(wanted)})
    page.say(f"Namespace {namespace} {'was made' if made else 'is there'}; search attributes: {len(wanted)} known.")
    page.fact("added", ", ".join(sorted(added)))
    return page


async def _namespace(temporal: Temporal, retention_days: int) -> bool:
    """True when the namespace was missing and was made."""
    name = temporal.client.namespace
    async with temporal.calling():
        if await _is_there(temporal):
            return False
        if not retention_days:
            raise Refused("namespace_missing", f"Temporal has no namespace {name}: add --retention-days to make it")
        wanted = RegisterNamespaceRequest(
            namespace=name,
            description="Effect Ledger",
            workflow_execution_retention_period=Duration(seconds=retention_days * 86_400),
        )
        try:
            await temporal.client.workflow_service.register_namespace(wanted)
        except RPCError as error:
            if error.status != RPCStatusCode.ALREADY_EXISTS:  # somebody was quicker
                raise
    return True


async def _is_there(temporal: Temporal) -> bool:
    try:
        wanted = DescribeNamespaceRequest(namespace=temporal.client.namespace)
        await temporal.client.workflow_service.describe_namespace(wanted)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def _attributes(temporal: Temporal, wanted: Types) -> set[str]:
    """The names that had to be added. A namespace that was just made may be unknown for some seconds."""
    added: set[str] = set()
    while True:
        async with temporal.calling():
            try:
                missing = {n: kind for n, kind in wanted.items() if n not in await _listed(temporal, wanted)}
                if not missing:
                    return added
                await temporal.client.operator_service.add_search_attributes(
                    AddSearchAttributesRequest(namespace=temporal.client.namespace, search_attributes=missing)
                )
                added |= missing.keys()
            except RPCError as error:
                if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.ALREADY_EXISTS):
                    raise
        await asyncio.sleep(PAUSE_SECONDS)


async def _listed(temporal: Temporal, wanted: Mapping[str, "IndexedValueType.ValueType"]) -> set[str]:
    """Which of them are there with the right type. Refused: `search_attribute_differs`."""
    answer = await temporal.client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=temporal.client.namespace)
    )
    there = {name: kind for name, kind in answer.custom_attributes.items() if name in wanted}
    for name, kind in there.items():
        if kind != wanted[name]:
            message = f"{name} is registered with another type: use another namespace, or remove it there first"
            raise Refused("search_attribute_differs", message, field=name)
    return set(there)
