"""An example of who hears notices: checks the signature, says each one once, and shows how to pass it on.

    NOTICES_SECRET=whsec_… python deploy/notices/receiver.py 8090

1. The signature is that of https://www.standardwebhooks.com: HMAC-SHA256 over id, time and body. Libraries check it too.
2. A notice may come more than once: `webhook-id` is the same then. 2xx says that it need not come again; anything else, that it
   must.
3. A notice is a reason to look, and never one to act: it carries ids and a link.
"""

import base64
import hashlib
import hmac
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TOLERANCE_SECONDS = 300


def verified(headers: Any, body: bytes, secret: str, now: float) -> bool:
    """Whether this body was signed with the secret, less than five minutes ago."""
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(now - int(at)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.digest(key, f"{name}.{at}.".encode() + body, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(f"v1,{wanted}", each) for each in given)


def receiver(secret: str, hear: Callable[[bytes], None]) -> Starlette:
    """An application that gives each notice to `hear` once; one that `hear` raises for is answered with 500, and comes again."""
    heard: set[str] = set()  # a real one keeps this where a restart does not lose it

    async def notices(request: Request) -> Response:
        body = await request.body()
        if not verified(request.headers, body, secret, time.time()):
            return Response("signed by somebody else, or too old\n", status_code=401)
        name = request.headers["webhook-id"]
        if name not in heard:
            hear(body)
            heard.add(name)
        return Response(status_code=204)

    return Starlette(routes=[Route("/", notices, methods=["POST"])])


def serve(hear: Callable[[bytes], None]) -> None:
    """Listen on loopback, on the port that was given."""
    secret, port = os.environ["NOTICES_SECRET"], int(sys.argv[1])
    uvicorn.run(receiver(secret, hear), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    serve(lambda body: print(body.decode(), flush=True))
