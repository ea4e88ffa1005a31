"""Radicale as it is: what its ETags promise, what it does to a card, and that its own records can be believed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

import devstack.receiver
from devstack.ports import free_port
from devstack.radicale import SERVICE, AddressBook, Answered, Card, Login, RadicaleServer, Written
from devstack.receiver import ReceiverError, erp_python

WRITERS, ROUNDS = 6, 5
QUERY = """<CR:addressbook-query xmlns:D="DAV:" xmlns:CR="urn:ietf:params:xml:ns:carddav"><D:prop><D:getetag/></D:prop>
<CR:filter><CR:prop-filter name="X-EFFECT-OPERATION"><CR:text-match collation="i;octet" match-type="equals">{}</CR:text-match>
</CR:prop-filter></CR:filter></CR:addressbook-query>"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RadicaleServer]:
    """One server for the tests that leave it running."""
    with RadicaleServer(tmp_path_factory.mktemp("radicale")) as running:
        yield running


@pytest.fixture
def book(server: RadicaleServer) -> Iterator[AddressBook]:
    """The clerk at the one book."""
    with server.book() as opened:
        yield opened


@pytest.fixture
def service(server: RadicaleServer) -> Iterator[httpx.Client]:
    """What our adapter would be."""
    with _client(server) as client:
        yield client


def test_a_card_is_made_once_and_changed_only_from_the_version_that_was_read(
    book: AddressBook, service: httpx.Client
) -> None:
    href = f"{book.path}once.vcf"
    first = _card("once", "Ada")
    made = _put(service, href, first, none_match="*")
    assert (made.status_code, made.headers["ETag"]) == (201, _read(book, href).etag)
    assert _put(service, href, first, none_match="*").status_code == 412
    changed = _put(service, href, _card("once", "Grace"), match=made.headers["ETag"])
    assert (changed.status_code, changed.headers["ETag"]) == (204, _read(book, href).etag)
    assert _put(service, href, _card("once", "Edith"), match=made.headers["ETag"]).status_code == 412
    assert _read(book, href).values("FN") == ["Grace"]
    assert service.get(f"{book.path}absent.vcf").status_code == 404
    assert _put(service, f"{book.path}absent.vcf", _card("absent"), match=made.headers["ETag"]).status_code == 412


def test_without_a_version_or_with_a_star_it_overwrites_without_a_word(
    book: AddressBook, service: httpx.Client
) -> None:
    """Why an adapter must refuse to send without the exact tag."""
    card = book.add("Ada")
    uid = card.values("UID")[0]
    assert _put(service, card.href, _card(uid, "Grace")).status_code == 204
    assert _put(service, card.href, _card(uid, "Edith"), match="*").status_code == 204
    for other in (f"W/{card.etag}", card.etag.strip('"'), f'"other", {card.etag}'):
        assert _put(service, card.href, _card(uid, "Nobody"), match=other).status_code == 412
    assert _read(book, card.href).values("FN") == ["Edith"]


def test_a_strict_one_wants_a_version_for_every_change(tmp_path: Path) -> None:
    with RadicaleServer(tmp_path, strict=True) as strict, strict.book() as book, _client(strict) as service:
        card = book.add("Ada")
        assert _put(service, card.href, card.content).status_code == 412
        assert _put(service, card.href, card.content, match=card.etag).status_code == 204


def test_its_version_is_a_digest_of_the_content_and_cannot_see_a_change_that_was_undone(
    book: AddressBook, service: httpx.Client
) -> None:
    card = book.add("Ada")
    assert card.etag == f'"{sha256(card.content).hexdigest()}"'
    book.edit(card.href, "FN", "Grace")
    assert book.write(card.href, card.content).etag == card.etag
    assert _put(service, card.href, card.content, match=card.etag).status_code == 204
    assert len(book.written(card.href)) == 4


def test_of_writers_with_one_version_exactly_one_wins(book: AddressBook, service: httpx.Client) -> None:
    for _ in range(ROUNDS):
        card = book.add("Ada")
        bodies = [_card(card.values("UID")[0], f"Writer {n}") for n in range(WRITERS)]
        assert _race(service, card.href, bodies, match=card.etag) == [204] + [412] * (WRITERS - 1)
        assert [change.who for change in book.written(card.href)] == ["clerk", "service"]
        href = f"{card.href.removesuffix('.vcf')}-new.vcf"
        bodies = [_card(card.values("UID")[0] + "-new", f"Writer {n}") for n in range(WRITERS)]
        assert _race(service, href, bodies, none_match="*") == [201] + [412] * (WRITERS - 1)
        assert [change.verb for change in book.written(href)] == ["PUT"]


@pytest.mark.parametrize("version", ["3.0", "4.0"])
def test_a_card_is_rewritten_but_keeps_what_it_says(book: AddressBook, version: str) -> None:
    """Properties change places, long lines are folded, parameters sorted; what is escaped as it should be stays."""
    card = book.add(
        "Žofie", "x-effect-operation:op-1", "X-EFFECT-OPERATION:op-0", f"NOTE:{'long ' * 40}", version=version
    )
    assert card.values("X-EFFECT-OPERATION") == ["op-1", "op-0"]
    assert card.values("FN") == ["Žofie"] and card.values("VERSION") == [version]
    assert card.values("NOTE") == ["long " * 40]
    assert book.write(card.href, card.content) == card
    text = "one, two; three\\ four\nfive"
    assert book.edit(card.href, "NOTE", text).values("NOTE") == [text]
    # Left unescaped, a comma is where Radicale cuts: it answers 201 and the rest is gone.
    assert book.add("Ada", "NOTE:one, two", version=version).values("NOTE") == ["one"]


def test_what_is_no_card_of_this_book_is_refused_and_nothing_is_written(
    book: AddressBook, service: httpx.Client
) -> None:
    card = book.add("Ada")
    uid = card.values("UID")[0]
    href = f"{book.path}refused.vcf"
    for content in (b"garbage", b"", _card("refused")[:40], _card("refused").replace(b"UID:refused\r\n", b"")):
        assert _put(service, href, content).status_code == 400
    assert _put(service, href, _card(uid)).status_code == 409
    assert _put(service, card.href, _card("other")).status_code == 409
    assert _put(service, "/crm/no-such-book/a.vcf", _card("a")).status_code == 409
    # Too large a card is refused with the word for a stale version, although no version was asked for.
    assert _put(service, href, _card("refused", "x" * 100_001)).status_code == 412
    assert _put(service, href, _card("refused", "x" * 1_000_001)).status_code == 413
    assert service.put(href, content=iter([_card("refused")])).status_code == 400, "it takes no chunks"
    assert book.written(href) == [] and len(book.written(card.href)) == 1


def test_who_may_not_is_refused(server: RadicaleServer, book: AddressBook, service: httpx.Client) -> None:
    card = book.add("Ada")
    for login in (Login(SERVICE.user, "wrong"), Login("nobody", "wrong")):
        with _client(server, login) as stranger:
            assert _put(stranger, card.href, card.content, match=card.etag).status_code == 401
    assert httpx.get(server.base_url + card.href, trust_env=False).status_code == 401
    assert service.delete(book.path).status_code == 403
    assert _put(service, "/clerk/a.vcf", card.content).status_code == 403
    assert len(book.written(card.href)) == 1


def test_a_card_is_found_by_our_mark_at_once_and_exactly(book: AddressBook, service: httpx.Client) -> None:
    card = book.add("Ada", "X-EFFECT-OPERATION:op-7")
    book.add("Grace", "X-EFFECT-OPERATION:op-70")
    assert _find(service, book, "op-7") == [card.href]
    assert _find(service, book, "OP-7") == _find(service, book, "op-") == []


def test_its_records_tell_every_change_with_its_author_and_every_refusal(
    book: AddressBook, service: httpx.Client
) -> None:
    card = book.add("Ada")
    changed = _put(service, card.href, _card(card.values("UID")[0], "Grace"), match=card.etag)
    assert _put(service, card.href, card.content, match=card.etag).status_code == 412
    service.delete(card.href, headers={"If-Match": card.etag})
    last = _read(book, card.href)
    book.delete(card.href)
    assert book.read(card.href) is None and card.href not in book.hrefs()
    written = [("clerk", "PUT", card.content), ("service", "PUT", last.content), ("clerk", "DELETE", b"")]
    assert book.written(card.href) == [Written(*change) for change in written]
    assert last.etag == changed.headers["ETag"]
    asked = [found for found in book.answered(card.href) if found.verb != "GET"]
    told = [("clerk", "PUT", 201), ("service", "PUT", 204), ("service", "PUT", 412), ("service", "DELETE", 412)]
    assert asked == [Answered(*answer) for answer in (*told, ("clerk", "DELETE", 200))]


def test_cards_outlive_a_kill_on_the_same_port(tmp_path: Path) -> None:
    with RadicaleServer(tmp_path) as server, server.book() as book:
        card = book.add("Ada")
        port = server.port
        server.kill()
        with pytest.raises(httpx.ConnectError):
            book.read(card.href)
        server.restart()
        assert server.port == port
        assert book.read(card.href) == card and book.hrefs() == [card.href]
        book.edit(card.href, "FN", "Grace")
        assert [change.who for change in book.written(card.href)] == ["clerk", "clerk"]


def test_a_paused_one_answers_when_it_is_resumed(server: RadicaleServer, book: AddressBook) -> None:
    card = book.add("Ada")
    server.pause()
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(server.base_url + card.href, timeout=0.2, trust_env=False)
    finally:
        server.resume()
    assert book.read(card.href) == card


def test_it_changes_a_port_that_is_taken_and_says_what_else_keeps_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RadicaleServer(tmp_path)
    with pytest.raises(ReceiverError, match="has not been started"):
        server.kill()
    server.start()
    with pytest.raises(ReceiverError, match="already started"):
        server.start()
    taken = server.port
    ports = iter([taken, free_port()])
    monkeypatch.setattr(devstack.receiver, "free_port", lambda: next(ports, None) or free_port())
    with RadicaleServer(tmp_path / "second") as second:
        assert second.port != taken, "a port taken at the last moment is changed"
    server.stop()
    monkeypatch.setattr("devstack.radicale._RIGHTS", "no rights at all")
    with pytest.raises(ReceiverError, match=r"(?s)did not start; its last words:\n.*Failed to load rights file"):
        server.start()
    monkeypatch.setattr(devstack.receiver, "ROOT", tmp_path)
    with pytest.raises(ReceiverError, match="make .venv-erp/.installed"):
        erp_python()


def _client(server: RadicaleServer, login: Login = SERVICE) -> httpx.Client:
    auth = (login.user, login.password)
    return httpx.Client(base_url=server.base_url, auth=auth, timeout=30, trust_env=False)


def _card(uid: str, full_name: str = "Ada") -> bytes:
    return f"BEGIN:VCARD\r\nVERSION:4.0\r\nUID:{uid}\r\nFN:{full_name}\r\nEND:VCARD\r\n".encode()


def _put(
    client: httpx.Client, href: str, content: bytes, *, match: str | None = None, none_match: str | None = None
) -> httpx.Response:
    conditions = {"If-Match": match, "If-None-Match": none_match}
    headers = {name: value for name, value in conditions.items() if value is not None}
    return client.put(href, content=content, headers={"Content-Type": "text/vcard", **headers})


def _read(book: AddressBook, href: str) -> Card:
    card = book.read(href)
    assert card is not None
    return card


def _find(service: httpx.Client, book: AddressBook, operation: str) -> list[str]:
    answer = service.request("REPORT", book.path, content=QUERY.format(operation), headers={"Depth": "1"})
    assert answer.status_code == 207
    return [element.text or "" for element in ElementTree.fromstring(answer.content).iter("{DAV:}href")]


def _race(service: httpx.Client, href: str, bodies: list[bytes], **condition: str) -> list[int]:
    """The answers to all of them, sent at once, each over a connection of its own."""
    start = threading.Barrier(len(bodies))

    def write(content: bytes) -> int:
        start.wait()
        return _put(service, href, content, **condition).status_code

    with ThreadPoolExecutor(len(bodies)) as writers:
        return sorted(writers.map(write, bodies))
