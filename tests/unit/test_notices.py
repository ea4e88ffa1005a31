"""Notices, the pure part: what is posted, how it is signed, how long until the next try; and the example of a chat."""

import base64
import json
import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from activities.notices import content_of, delay_after, headers_for, signing_key
from ledger.errors import Refused
from ledger.states import State
from ledger.store.notices import Notice, NoticeKind

DEPLOY = Path(__file__).parents[2] / "deploy" / "notices"
SECRET = "whsec_" + base64.b64encode(b"n" * 32).decode()
NOTICE = Notice(
    UUID("2b0f1c7e-0000-5000-8000-000000000001"), NoticeKind.WAITING, 3, 1, "acme", "order/7", "refund",
    State.AWAITING_APPROVAL, datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of an example, run as a module of its folder."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    sys.modules.pop("receiver", None)
    yield lambda name: runpy.run_path(str(DEPLOY / name))
    sys.modules.pop("receiver", None)


def test_a_body_carries_ids_and_a_link_and_nothing_to_act_on() -> None:
    told = json.loads(content_of(NOTICE, "https://ui.test/workflows/{workflow_id}"))
    assert told.pop("timestamp") and told["type"] == "operation.waiting"
    assert told["data"] == {
        "operation_id": str(NOTICE.operation_id), "workflow_id": "acme/order/7", "action": "refund",
        "state": "awaiting_approval", "event_number": 3, "until": "2026-01-02T00:00:00+00:00",
        "link": "https://ui.test/workflows/acme%2Forder%2F7",
    }  # fmt: skip


def test_the_signature_is_that_of_standard_webhooks(example: Any) -> None:
    """The vector of its reference libraries. Red: leave the id or the time out of what is signed."""
    known = headers_for(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    )
    assert known["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    verified = example("receiver.py")["verified"]
    headers, body = headers_for(NOTICE.name, 1_000, b"body", SECRET), b"body"
    assert verified(headers, body, SECRET, 1_000.0)
    assert not verified(headers, b"bodY", SECRET, 1_000.0)
    assert not verified(headers, body, SECRET, 1_301.0) and not verified(headers, body, SECRET, 699.0)
    assert not verified(headers | {"webhook-id": "x"}, body, SECRET, 1_000.0)
    assert not verified({}, body, SECRET, 1_000.0)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_not base64!", "whsec_" + base64.b64encode(b"short").decode(), SECRET[6:]]
)
def test_a_secret_that_signs_nothing_is_refused(secret: str) -> None:
    with pytest.raises(Refused, match="whsec_") as refused:
        signing_key(secret)
    assert refused.value.rule == "notices_secret_malformed"


def test_tries_come_ever_more_slowly_and_never_stop() -> None:
    assert [delay_after(n).total_seconds() for n in (1, 2, 3, 10, 11, 10_000)] == [5, 10, 20, 2560, 3600, 3600]


@pytest.mark.parametrize(
    ("kind", "state", "over"),
    [
        ("waiting", "awaiting_approval", False), ("waiting", "approved", True), ("half_life", "blocked", True),
        ("half_life", "awaiting_approval", False), ("review", "needs_review", False), ("review", "succeeded", True),
        ("contradicted", "succeeded", False),
    ],
)  # fmt: skip
def test_nobody_hears_of_what_is_over(kind: str, state: str, over: bool) -> None:
    fields = {**vars(NOTICE), "kind": NoticeKind(kind), "state": State(state)}
    assert Notice(**fields).over is over


def test_a_line_for_a_chat_is_one_sentence_without_markup(example: Any) -> None:
    """Red: put the workflow id in as it comes."""
    line_of = example("chat.py")["line_of"]
    hostile = Notice(**{**vars(NOTICE), "business_key": "<!channel>/x"})
    assert line_of(content_of(hostile, "")) == (
        "refund acme/channel/x waits for approval (until 2026-01-02T00:00:00+00:00)"
    )
    assert timedelta(0) < delay_after(1)
