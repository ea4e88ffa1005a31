"""Starts the stand-in as a process of its own: `python -m devstack.stripe_standin --port N --state FILE.sqlite`."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from devstack.stripe_standin.app import Api
from devstack.stripe_standin.control_api import Control
from devstack.stripe_standin.faults import FaultProtocol
from devstack.stripe_standin.records import Records
from devstack.stripe_standin.schema import Database
from devstack.stripe_standin.world import World

# Not a secret: it opens nothing but this process.
DEFAULT_KEY = "sk_test_standin0000000000"
DEFAULT_ACCOUNT = "acct_1StandIn00000000"
HOST = "127.0.0.1"


def build(state: Path, secret_keys: list[str], account: str) -> Starlette:
    """The application on its state, with at least one account and one key."""
    database = Database(state)
    world = World(database)

    def initial(world: World) -> str:
        world.add_account(account, None)
        for secret_key in secret_keys:
            world.add_key(secret_key, account)
        return account

    api = Api(world, Records(database))
    control = Control(api, initial)
    return Starlette(routes=[Mount("/_control", routes=control.routes()), Mount("/", app=api)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devstack.stripe_standin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1; 0 takes a free one and prints it")
    parser.add_argument("--state", type=Path, required=True, help="SQLite file; made if it is not there")
    parser.add_argument("--secret-key", action="append", help=f"may be given several times (default {DEFAULT_KEY})")
    parser.add_argument("--account", default=DEFAULT_ACCOUNT, help="the account of these keys (default %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    app = build(args.state, args.secret_key or [DEFAULT_KEY], args.account)
    # Named as TCP, because asyncio switches Nagle's delay off only then (40 ms an answer).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A restart after a kill has to get the same port back at once.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, args.port))
    listener.listen(128)
    print(f"stripe stand-in on http://{HOST}:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        app,
        http=FaultProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        # The Date header is ours, from the movable clock.
        date_header=False,
        # An idle connection of the SDK's pool must not be closed under a request that is on its way.
        timeout_keep_alive=120,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
