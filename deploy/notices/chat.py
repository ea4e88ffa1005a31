"""The same for a chat: each notice becomes one line, posted to an incoming webhook that takes {"text": …} (Slack, Mattermost,
Rocket.Chat, Google Chat).

    NOTICES_SECRET=whsec_… CHAT_URL=https://… python deploy/notices/chat.py 8090

The chat's address is a secret: whoever has it can post there. If the chat does not take a line, the notice comes again.
"""

import json
import os

import httpx
from receiver import serve

WORDS = {
    "operation.waiting": "waits for approval",
    "operation.half_life": "waits for approval still, and half of its time is over",
    "operation.review": "must be settled by people",
    "operation.contradicted": "has evidence against its end: look at it now",
}


def line_of(body: bytes) -> str:
    """One notice in a sentence. What it names comes from callers, so nothing in it may become markup or a mention."""
    notice = json.loads(body)
    data = notice["data"]
    name = "".join(c for c in data["workflow_id"] if c.isalnum() or c in "._/-")
    until = f" (until {data['until']})" if "until" in data else ""
    return f"{data['action']} {name} {WORDS.get(notice['type'], notice['type'])}{until} {data['link']}".strip()


def to_chat(body: bytes) -> None:
    """Post the line; raises if the chat does not take it."""
    httpx.post(os.environ["CHAT_URL"], json={"text": line_of(body)}, timeout=5).raise_for_status()


if __name__ == "__main__":
    serve(to_chat)
