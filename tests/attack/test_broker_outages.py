"""What a broker depends on is away, or the broker has a fault: that refuses nobody and is seen.

An outage is 503 and never a refusal in the ledger; a fault is 500 and never the caller's; and an
operator sees which part fails while it fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from owner_acts import HTTP, approval, signed
from postgres_server import Server, postgres_server
from release_world import ReleaseWorld, boot_info, config_of, release_world, served_world
from world import DAY, NOW

from sealtrain.base.background import in_background
from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.errors import TokenRefused
from sealtrain.broker.serve import listening
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.store.tokens import TokenState, make_token
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import KeyRequest, obtain
from sealtrain.errors import ChainUnreachable, SealtrainError, Unreachable
from sealtrain.ledger.postgres import Postgres

pytestmark = pytest.mark.claim("C99")

PLACE = "db-7.inside.example"


class Chain:
    """A chain gate that a test can take away."""

    away = True

    def ready(self) -> None:
        if self.away:
            raise ChainUnreachable("too few nodes agree", check="chain", got=PLACE)

    def require_allowed(self, app_id: str, compose_hash: str) -> None:
        self.ready()


@pytest.fixture
def chained(tmp_path: Path) -> Iterator[tuple[ReleaseWorld, str]]:
    with served_world(tmp_path, chain=Chain()) as both:
        yield both


def token(world: ReleaseWorld) -> str:
    made = make_token(lambda size: bytes([7]) * size)
    with world.store.transaction() as transaction:
        state = TokenState(name="status", scope="status", made_at=NOW, not_after=NOW + DAY)
        transaction.tokens.add(made, state)
    return made


def asked(world: ReleaseWorld, url: str) -> None:
    """A release over HTTP."""
    with BrokerClient(url) as client:
        obtain(
            client,
            world.attest(),
            world.collect(world.guest()),
            KeyRequest(
                run_id="ab" * 16,
                recipe_hash=world.locked.recipe_hash,
                datasets=[dataset.asked for dataset in world.sealed.values()],
                resume=False,
            ),
        )


def test_an_unreachable_chain_refuses_nobody(chained: tuple[ReleaseWorld, str]) -> None:
    world, url = chained
    size = world.ledger.size
    with pytest.raises(BrokerUnreachable) as caught:
        asked(world, url)
    assert (caught.value.exit_code, caught.value.retry) == (4, "again")
    assert caught.value.got == "HTTP 503 chain-unreachable"
    booted = HTTP.post(f"{url}/bootAuth/app", content=canonical_json(boot_info(world)))
    for answered in (booted, HTTP.get(f"{url}/v1/ready")):
        assert answered.status_code == 503
        assert answered.json()["error"].keys() == {"code", "message"}
        assert answered.json()["error"]["code"] == "chain-unreachable"
        assert answered.headers["retry-after"]
        assert PLACE not in answered.text
    assert world.ledger.size == size, "an outage was recorded as a refusal"
    Chain.away = False
    try:
        asked(world, url)
    finally:
        Chain.away = True


def test_an_operator_sees_which_part_fails_while_it_fails(
    chained: tuple[ReleaseWorld, str],
) -> None:
    world, url = chained
    shown = token(world)
    with BrokerClient(url) as client:
        told = client.status(shown)
        assert (told.ready, told.failing) == (False, {"chain": PLACE})
        assert told.sizes["decisions"] == 2


def test_without_its_database_it_answers_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise Unreachable("the database cannot be used", check="database", got="SQLITE_FULL")

    with served_world(tmp_path) as (world, url):
        shown, body, size = token(world), approval(world), world.ledger.size
        with BrokerClient(url) as client:
            assert client.status(shown).ready
            monkeypatch.setattr("sealtrain.broker.store.memory.begin", gone)
            told = client.status(shown)
            assert (told.ready, told.failing) == (False, {"database": "SQLITE_FULL"})
            assert told.sizes == {"ledger_entries": size}
            with pytest.raises(TokenRefused):
                client.status("sealtrain_" + "a" * 43)
            assert client.health().ledger_size == size
            with pytest.raises(BrokerUnreachable):
                client.ready()
        path = f"{url}/v1/approvals"
        answered = HTTP.post(path, content=body, headers=signed(path, body))
        assert (answered.status_code, answered.json()["error"]["code"]) == (503, "unreachable")
        monkeypatch.undo()
        assert world.ledger.size == size
        assert HTTP.post(path, content=body, headers=signed(path, body)).status_code == 200


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres_server() as made:
        yield made


def test_a_database_server_that_is_stopped_and_comes_back(server: Server, tmp_path: Path) -> None:
    where = Postgres.parse(server.url(server.new_database()))
    with (
        release_world(tmp_path, database=where) as world,
        listening(world.broker, config_of(tmp_path, limits=world.broker.caps)) as url,
    ):
        shown, size = token(world), world.ledger.size
        path, body = f"{url}/v1/approvals", approval(world)
        with BrokerClient(url) as client:
            assert client.status(shown).ready
            server.stop()
            told = client.status(shown)
            assert set(told.failing) == {"database", "ledger"}
            assert told.sizes == {}
            assert client.health().ledger_size == size
            for read in ("consortium", "approvals", "ledger/checkpoint", "ledger/entries"):
                target = world.target.to_dict() if read == "approvals" else {}
                status = HTTP.get(f"{url}/v1/{read}", params=target).status_code
                assert status == (200 if read == "consortium" else 503), read
            stopped = HTTP.post(path, content=body, headers=signed(path, body))
            assert stopped.status_code == 503
            assert str(server.port) not in stopped.text
            server.start()
            assert HTTP.post(path, content=body, headers=signed(path, body)).status_code == 200
            assert client.status(shown).ready


def test_a_fault_of_the_broker_is_not_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    with served_world(tmp_path) as (world, url):
        attested, size = world.attest(), world.ledger.size
        monkeypatch.setattr(Keyring, "seal_answer", broken)
        with pytest.raises(ZeroDivisionError):
            world.obtain(attested=attested)
        with pytest.raises(BrokerUnreachable) as caught:
            asked(world, url)
        assert caught.value.got == "HTTP 500 internal"
        assert world.ledger.size == size, "a fault was recorded as a refusal"


def test_threads_that_fail_together_raise_an_error_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_connection: object) -> None:
        raise Unreachable("the disk is full", check="database file")

    with release_world(tmp_path) as world:
        caught: list[SealtrainError] = []
        ready = threading.Barrier(8)

        def ask() -> None:
            ready.wait(20)
            try:
                with world.store.transaction(alone=False):
                    pass
            except SealtrainError as error:
                caught.append(error)

        monkeypatch.setattr("sealtrain.broker.store.group_commit.commit", full)
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(caught) == 8
    assert len({id(error) for error in caught}) == 8
    assert {error.code for error in caught} == {"unreachable"}


def test_a_server_that_ends_before_it_answers_says_so() -> None:
    async def silent(_ready: object, _quitters: object) -> None:
        return

    with pytest.raises(Unreachable), in_background("silent", silent):
        raise AssertionError("it never answered")


def test_no_page_of_a_broker_loads_anything(tmp_path: Path) -> None:
    with served_world(tmp_path) as (_world, url):
        for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
            answered = HTTP.get(url + path)
            assert answered.status_code == 404
            assert answered.headers["content-type"] == "application/json"
        document = HTTP.get(f"{url}/openapi.json").json()
        for path in document["paths"]:
            media = HTTP.get(url + path).headers["content-type"]
            assert not media.startswith("text/html"), path


def test_who_asks_too_often_is_told_to_ask_again(tmp_path: Path) -> None:
    with served_world(tmp_path, limits=BrokerLimits(posts_per_minute=1)) as (world, url):
        body = canonical_json(boot_info(world))
        told = [HTTP.post(f"{url}/bootAuth/app", content=body) for _ in range(3)][-1]
        assert told.status_code == 429
        assert told.json()["error"]["code"] == "too-many-requests"
        assert told.headers["retry-after"]
