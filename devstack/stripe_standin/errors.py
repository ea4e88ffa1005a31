"""The error answers of the API, as one exception that carries Stripe's own fields."""

from __future__ import annotations

from typing import Any

DOC_PREFIX = "https://stripe.com/docs/error-codes/"


class StripeError(Exception):
    """An error answer; `stored` says whether it came after execution began, so that its key replays it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        stored: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.stored = stored
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Fields that are null at Stripe are absent here too."""
        error: dict[str, Any] = {"message": self.message, "type": self.kind}
        if self.code is not None:
            error["code"] = self.code
            error["doc_url"] = DOC_PREFIX + self.code.replace("_", "-")
        if self.param is not None:
            error["param"] = self.param
        return {"error": error}


def no_such(thing: str, reference: str, param: str, *, stored: bool = False) -> StripeError:
    return StripeError(404, f"No such {thing}: '{reference}'", code="resource_missing", param=param, stored=stored)


def unauthorized(secret_key: str | None) -> StripeError:
    if not secret_key:
        return StripeError(
            401,
            "You did not provide an API key. You need to provide your API key in the Authorization header,"
            " using Bearer auth (e.g. 'Authorization: Bearer YOUR_SECRET_KEY').",
        )
    return StripeError(401, f"Invalid API Key provided: {masked(secret_key)}")


def forbidden(secret_key: str, account: str) -> StripeError:
    return StripeError(
        403,
        f"The provided key '{masked(secret_key)}' does not have access to account '{account}'"
        " (or that account does not exist). Application access may have been revoked.",
        code="account_invalid",
    )


def rate_limited() -> StripeError:
    return StripeError(
        429,
        "Request rate limit exceeded. You can learn more about rate limits here https://stripe.com/docs/rate-limits.",
        code="rate_limit",
        headers={"Stripe-Rate-Limited-Reason": "global-rate"},
    )


def lock_timeout() -> StripeError:
    return StripeError(
        429,
        "This object cannot be accessed right now because another API request or Stripe process is currently"
        " accessing it. If you see this error intermittently, retry the request.",
        code="lock_timeout",
        headers={"Stripe-Should-Retry": "true"},
    )


def key_in_use(idempotency_key: str) -> StripeError:
    return StripeError(
        409,
        "There is currently another in-progress request using this Idempotent Key"
        f" (that probably means you submitted twice, and the other request is still going through): {idempotency_key}."
        " Please try again later.",
        code="idempotency_key_in_use",
    )


def key_misused_params(idempotency_key: str) -> StripeError:
    return StripeError(
        400,
        "Keys for idempotent requests can only be used with the same parameters they were first used with."
        f" Try using a key other than '{idempotency_key}' if you meant to execute a different request.",
        kind="idempotency_error",
    )


def key_misused_endpoint(idempotency_key: str, asked: str, first: str) -> StripeError:
    return StripeError(
        400,
        "Keys for idempotent requests can only be used for the same endpoint they were first used for"
        f" ('{asked}' vs '{first}'). Try using a key other than '{idempotency_key}' if you meant to execute"
        " a different request.",
        kind="idempotency_error",
    )


def server_error() -> StripeError:
    return StripeError(500, "An unknown error occurred", kind="api_error", stored=True)


def masked(secret_key: str) -> str:
    """Stripe shows the prefix and the last four characters only, and so do we, also in the journal."""
    prefix = "_".join(secret_key.split("_")[:2])
    return f"{prefix}_{'*' * 12}{secret_key[-4:]}"
