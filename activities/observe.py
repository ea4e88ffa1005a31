"""Logs: JSON lines with the ids of operation, attempt, workflow and run on each, and never a secret or personal field."""

import logging
import sys
from typing import Any

import structlog
from temporalio import activity, workflow
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)


def configure_logging(level: str) -> None:
    """Write JSON lines to stderr, the standard library's loggers (Temporal's, psycopg's) included."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _drop_on_replay,
        _temporal_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    to_json = logging.StreamHandler(sys.stderr)
    to_json.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[to_json], level=level.upper(), force=True)
    # The adapters' HTTP library logs URLs with ids in them, and Temporal's worker whatever an activity returns.
    for noisy in ("httpx", "httpcore", "stripe", "temporalio.worker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for carrier in (activity.logger, workflow.logger):
        # The dictionary that the SDK glues to each message holds workflow input types and task queues: noise.
        for switch in ("activity_info_on_message", "workflow_info_on_message"):
            if hasattr(carrier, switch):
                setattr(carrier, switch, False)


def _drop_on_replay(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    if workflow.in_workflow() and workflow.unsafe.is_replaying():
        raise structlog.DropEvent
    return event


def _temporal_ids(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    if activity.in_activity():
        info = activity.info()
        event.setdefault("workflow_id", info.workflow_id)
        event.setdefault("run_id", info.workflow_run_id)
        event.setdefault("activity", info.activity_type)
        event.setdefault("try", info.attempt)
    elif workflow.in_workflow():
        event.setdefault("workflow_id", workflow.info().workflow_id)
        event.setdefault("run_id", workflow.info().run_id)
    return event


class Observing(Interceptor):
    """Logs every activity once when it ends, with where the operation then stands."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See Temporal's interceptors."""
        return _ObservedActivity(super().intercept_activity(next))


class _ObservedActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        log = structlog.get_logger()
        first = input.args[0] if input.args else None
        ids = {"operation_id": getattr(first, "operation_id", "")}
        with structlog.contextvars.bound_contextvars(**ids):
            try:
                answer = await super().execute_activity(input)
            except Exception as error:
                log.warning("activity raised", error=type(error).__name__)
                raise
            log.info("activity ended", **_told(answer))
            return answer


def _told(answer: Any) -> dict[str, Any]:
    """Ids and words of our own from what an activity returns; never free text."""
    fields = (
        "operation_id",
        "tenant",
        "state",
        "next",
        "reason",
        "refused_rule",
        "attempt",
        "receipt",
        "standing",
        "events",
    )
    return {name: value for name in fields if (value := getattr(answer, name, None)) not in (None, "", 0)}
