"""What operators see is shown for a token that is good for it, and for nothing else."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from release_world import ReleaseWorld, served_world
from typer.testing import CliRunner
from world import DAY, NOW

from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.broker.errors import TokenRefused
from sealtrain.broker.logs import configure
from sealtrain.broker.store.tokens import MAX_TOKENS, Scope, TokenState, make_token
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import AlreadyExists, LimitExceeded, Unreachable, UsageError

pytestmark = pytest.mark.claim("C50")

PATHS = {"/metrics": "metrics", "/v1/status": "status"}
HTTP = httpx2.Client(trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReleaseWorld, str]]:
    with served_world(tmp_path_factory.mktemp("operators")) as both:
        yield both


def given(world: ReleaseWorld, name: str, scope: Scope, *, until: int = NOW + DAY) -> str:
    token = make_token(os.urandom)
    with world.store.transaction() as transaction:
        made = TokenState(name=name, scope=scope, made_at=NOW, not_after=until)
        transaction.tokens.add(token, made)
    return token


def shown(url: str, authorization: str | None) -> int:
    headers = {} if authorization is None else {"authorization": authorization}
    answered = HTTP.get(url, headers=headers)
    if answered.status_code != 200:
        assert answered.headers["www-authenticate"] == "Bearer"
        assert answered.json()["error"]["code"] == "token-refused"
    assert answered.headers["cache-control"] == "no-store"
    return answered.status_code


@pytest.mark.parametrize("path", PATHS)
def test_a_token_shows_what_it_is_for_and_nothing_else(
    served: tuple[ReleaseWorld, str], path: str
) -> None:
    world, url = served
    tag = path.strip("/").replace("/", "-")
    scopes: dict[str, Scope] = {"metrics": "metrics", "status": "status"}
    good = given(world, f"{tag}-good", scopes[PATHS[path]])
    other = given(world, f"{tag}-other", next(s for s in scopes.values() if s != PATHS[path]))
    over = given(world, f"{tag}-over", scopes[PATHS[path]], until=NOW - 1)
    for no in (
        None,
        "",
        "Bearer",
        f"Basic {good}",
        good,
        f"Bearer {other}",
        f"Bearer {over}",
        f"Bearer {good[:-1]}",
        f"Bearer {good}x",
        f"Bearer {good.upper()}",
        f"Bearer {sha256_hex(good.encode())}",
        f"Bearer {tag}-good",
        f"Bearer {'a' * 4000}",
        "Bearer ' OR 1=1 --",
    ):
        assert shown(url + path, no) == 401, no
    assert shown(f"{url}{path}?token={good}&access_token={good}", None) == 401
    assert shown(url + path, f"Bearer {good}") == 200
    assert shown(url + path, f"bearer {good}") == 200
    with world.store.transaction() as transaction:
        transaction.tokens.remove(f"{tag}-good")
    assert shown(url + path, f"Bearer {good}") == 401


def test_the_numbers_and_the_state_are_there_and_name_nobody(
    served: tuple[ReleaseWorld, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, url = served
    numbers, state = given(world, "numbers", "metrics"), given(world, "state", "status")
    page = HTTP.get(f"{url}/metrics", headers={"authorization": f"Bearer {numbers}"})
    assert page.headers["content-type"].startswith("text/plain")
    assert "sealtrain_broker_ledger_entries" in page.text
    assert 'policy_violations_total{reason="token-refused"}' in page.text
    with BrokerClient(url) as client:
        told = client.status(state)
        assert (told.ready, told.failing) == (True, {})
        assert told.sizes["ledger_entries"] == world.ledger.size

        def full() -> None:
            raise Unreachable("x", check="disk", got="3 bytes free")

        monkeypatch.setitem(world.parts.surroundings, "disk", full)
        told = client.status(state)
        assert (told.ready, told.failing) == (False, {"disk": "3 bytes free"})
        with pytest.raises(TokenRefused) as caught:
            client.status(numbers)
    assert caught.value.exit_code == 3
    for secret in (numbers, state):
        assert secret not in page.text
        assert secret not in str(caught.value.to_dict())


def test_the_database_and_the_log_hold_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    root = logging.getLogger()
    kept = root.handlers[:], root.level
    try:
        configure("json")
        with served_world(tmp_path) as (world, url):
            token = given(world, "one", "status")
            assert shown(f"{url}/v1/status", f"Bearer {token}") == 200
            assert shown(f"{url}/metrics", f"Bearer {token}") == 401
    finally:
        root.handlers, _ = kept
        root.setLevel(kept[1])
    assert '"code": "token-refused"' in log.getvalue()
    assert token not in log.getvalue()
    for file in tmp_path.rglob("*sqlite*"):
        assert token.encode() not in file.read_bytes()


def test_tokens_are_few_and_each_has_its_name(served: tuple[ReleaseWorld, str]) -> None:
    world, _ = served
    given(world, "twice", "status")
    with pytest.raises(AlreadyExists):
        given(world, "twice", "metrics")
    with world.store.transaction() as transaction:
        had = len(transaction.tokens.all())
    for number in range(MAX_TOKENS - had):
        given(world, f"many-{number}", "status")
    with pytest.raises(LimitExceeded):
        given(world, "one-more", "status")
    with world.store.transaction() as transaction:
        for number in range(MAX_TOKENS - had):
            transaction.tokens.remove(f"many-{number}")
        with pytest.raises(UsageError):
            transaction.tokens.remove("many-0")


def test_the_commands_of_an_operator(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, Any]:
        done = CliRunner().invoke(app, ["broker", *words, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.exit_code == 0 else done.exception

    with served_world(tmp_path) as (world, url):
        world.clock.now = system_clock()
        (tmp_path / "broker.yaml").write_text(world.pin.model_copy(update={"url": url}).to_yaml())
        [state] = tmp_path.glob("state-*")
        file = tmp_path / "token"
        made = ("token", "create", "grafana", "--state", str(state), "--out", str(file))
        assert isinstance(run(*made, "--scope", "all")[1], UsageError)
        assert not file.exists()
        code, told = run(*made, "--scope", "status", "--valid-for", "2")
        assert (code, told["scope"]) == (0, "status")
        assert file.stat().st_mode & 0o077 == 0
        token = file.read_text().strip()
        assert token not in str(told)
        # The name is taken; and where the file is, neither token nor file is made.
        assert isinstance(run(*made, "--scope", "status")[1], AlreadyExists)
        again = ("token", "create", "other", "--state", str(state), "--out", str(file))
        assert isinstance(run(*again, "--scope", "status")[1], AlreadyExists)
        assert file.read_text().strip() == token
        code, told = run("token", "list", "--state", str(state))
        assert [token["name"] for token in told["tokens"]] == ["grafana"]

        asked = ("status", "--broker", str(tmp_path / "broker.yaml"))
        assert run(*asked)[1]["operator"] is None
        code, told = run(*asked, "--token-file", str(file))
        assert code == 0
        assert told["operator"]["sizes"]["decisions"] == 2
        assert run("token", "remove", "grafana", "--state", str(state))[0] == 0
        assert isinstance(run(*asked, "--token-file", str(file))[1], TokenRefused)
        assert isinstance(run("token", "remove", "grafana", "--state", str(state))[1], UsageError)
        assert run("token", "list", "--state", str(tmp_path))[0] != 0
