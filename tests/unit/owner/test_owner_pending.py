"""A watcher calls once for each pending approval, over restarts, and says nothing in the call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from carrying import carries
from http_server import Handler, http_served
from private_network import Authority
from release_world import ReleaseWorld, served_world
from typer.testing import CliRunner
from world import OWNERS, identity

import sealtrain
from sealtrain.base.http import Bounds
from sealtrain.base.outbound import Outbound, reach_by
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.ticket import RunTicket
from sealtrain.errors import ConfigError, Unreachable, UsageError
from sealtrain.owner.pending_approvals import MAX_ATTEMPTS, open_told, pending_at
from sealtrain.owner.webhook import BODY, Webhook, read_webhook

pytestmark = pytest.mark.claim("C682")

ENGINEER = "engineer-e"
OWNER = OWNERS[0]
QUICK = Bounds(connect=2.0, read=2.0, total=5.0, tries=2, pause=0.01)


@dataclass
class Waiting:
    """A broker that runs are submitted to."""

    made: ReleaseWorld
    url: str
    folder: Path

    def submit(self, name: str) -> sealtrain.SubmittedRun:
        pin = self.made.pin.model_copy(update={"url": self.url})
        self.broker.write_text(pin.to_yaml())
        return sealtrain.SubmittedRun.submit(
            self.made.locked,
            RunTicket(version=1, role="train", brokers=(pin,), data=("/data",)),
            broker=self.broker,
            identity=identity(ENGINEER),
            name=name,
            within=86_400,
            clock=self.made.clock,
        )

    @property
    def broker(self) -> Path:
        return self.folder / "broker.yaml"

    def pending(self, owner: str = OWNER) -> list[str]:
        with BrokerClient(self.url) as client:
            now = self.made.clock()
            return list(pending_at(client, self.made.consortium, owner, now=now))


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    with served_world(tmp_path, submitters=(ENGINEER,)) as (made, url):
        yield Waiting(made, url, tmp_path)


def test_an_approval_waits_until_its_owner_answers_and_again_once_the_answer_ended(
    waiting: Waiting,
) -> None:
    waiting.submit("early")
    assert waiting.pending() == []  # every owner approved
    waiting.made.clock.advance(400 * 86_400)
    assert waiting.pending() == []  # no run waits any more
    run = waiting.submit("one")
    waiting.submit("two")  # the same document: the same approval
    (first,) = waiting.pending()
    assert waiting.pending(OWNERS[1]) != [first]
    waiting.made.approve(OWNER)
    assert waiting.pending() == []
    waiting.made.revoke(OWNERS[1])
    assert waiting.pending(OWNERS[1]) == []  # a revocation is an answer
    run.stop(identity(ENGINEER))
    assert len(waiting.pending(OWNERS[2])) == 1  # the second run still waits


class Receiver(Handler):
    """Keeps each call, and answers as it is told."""

    calls: list[tuple[str, bytes, str | None]]
    status: int

    def do_POST(self) -> None:
        body = self.body()
        self.calls.append((self.path, body, self.headers["idempotency-key"]))
        self.answer(self.status, b"ignored" * 10, location="http://127.0.0.1:1/elsewhere")


@contextmanager
def receiving(
    status: int = 204, certificate: Path | None = None
) -> Iterator[tuple[str, list[tuple[str, bytes, str | None]]]]:
    calls: list[tuple[str, bytes, str | None]] = []
    handler = type("Receiving", (Receiver,), {"calls": calls, "status": status})
    with http_served(handler, certificate) as url:
        yield url, calls


def test_a_call_says_nothing_but_that_an_approval_is_pending() -> None:
    with receiving() as (url, calls):
        Webhook(url=f"{url}/secret-path", bounds=QUICK).call("ab" * 16)
    assert calls == [("/secret-path", BODY, "ab" * 16)]
    assert json.loads(BODY) == {"event": "approval-pending", "version": 1}


@pytest.mark.parametrize("status", [301, 302, 307, 400, 403, 500])
def test_an_answer_that_takes_no_call_is_an_error_and_no_redirect_is_followed(status: int) -> None:
    with (
        receiving(status) as (url, calls),
        pytest.raises(Unreachable, check=carries(got=f"HTTP {status}")) as refused,
    ):
        Webhook(url=f"{url}/secret-path", bounds=QUICK).call("ab" * 16)
    assert len(calls) == (2 if status == 500 else 1)
    assert len({key for _, _, key in calls}) == 1
    assert "secret-path" not in json.dumps(refused.value.to_dict())


def test_a_private_authority_vouches_for_a_webhook_and_no_other_does(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with receiving(certificate=authority.server("127.0.0.1")) as (url, calls):
        webhook = Webhook(url=url.replace("http:", "https:"), bounds=QUICK)
        with pytest.raises(Unreachable):
            webhook.call("ab" * 16)
        assert calls == []
        before = reach_by(lambda: Outbound(authorities=authority.pem.decode()))
        try:
            webhook.call("ab" * 16)
        finally:
            reach_by(before)
        assert len(calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "http://hooks.example/x", "http://127.0.0.1.evil.example/", "ftp://127.0.0.1/", "\n",
        "https://user:secret@hooks.example/", "https://hooks.example/#secret", "https://",
        "https://a b",
        "https://a/\nhttps://b/", "https://[::1", "https://a:99999999/",
        "https://ä.example/",
        "x" * 4000,
    ],
)  # fmt: skip
def test_what_is_no_webhook_is_refused_without_a_word_of_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(text)
    with pytest.raises(ConfigError, check=carries(check="webhook")) as refused:
        read_webhook(tmp_path / "hook")
    assert "secret" not in json.dumps(refused.value.to_dict())
    assert "secret" not in repr(Webhook(url="https://secret"))


@dataclass
class Calls:
    """Stands for a webhook."""

    fails: int = 0
    ids: list[str] = field(default_factory=list)

    def __call__(self, call_id: str) -> None:
        self.ids.append(call_id)
        if self.fails:
            self.fails -= 1
            raise Unreachable("no")


def test_each_approval_is_told_of_once_over_restarts(tmp_path: Path) -> None:
    path, calls = tmp_path / "told.json", Calls()
    a, b, c = ("aa" * 32, "bb" * 32, "cc" * 32)
    for pending, state in (
        ([a, b], "called"), ([a, b], "nothing-new"), ([b], "nothing-new"), ([], "nothing-new"),
        ([a], "nothing-new"), ([a, c], "called"),
    ):  # fmt: skip
        with open_told(path) as told:
            assert told.tell(pending, calls) == state
    assert len(set(calls.ids)) == len(calls.ids) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_call_that_failed_is_repeated_with_its_id_so_often_and_no_more(tmp_path: Path) -> None:
    path, calls = tmp_path / "told.json", Calls(fails=MAX_ATTEMPTS + 5)
    a = "aa" * 32
    for _ in range(MAX_ATTEMPTS):
        with open_told(path) as told, pytest.raises(Unreachable):
            told.tell([a], calls)
    with open_told(path) as told:
        assert told.tell([a], calls) == "given-up"
        assert told.tell([a], calls) == "nothing-new"
    assert (len(calls.ids), len(set(calls.ids))) == (MAX_ATTEMPTS, 1)


def test_what_was_answered_before_its_call_succeeded_is_not_told_of(tmp_path: Path) -> None:
    calls = Calls(fails=1)
    a, b = "aa" * 32, "bb" * 32
    with open_told(tmp_path / "told.json") as told:
        with pytest.raises(Unreachable):
            told.tell([a], calls)
        assert told.tell([], calls) == "nothing-new"
        assert told.tell([b], calls) == "called"
    assert len(set(calls.ids)) == 2


def test_one_watcher_has_a_memory_and_a_spoilt_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "told.json"
    refused: list[type[BaseException]] = []

    def take() -> None:
        try:
            with open_told(path):
                pass
        except UsageError as error:
            refused.append(type(error))

    with open_told(path):
        other = threading.Thread(target=take)
        other.start()
        other.join(20)
    assert refused == [UsageError]
    for text in ("", "{}", "[" * 5000, '{"version":1,"told":["x"],"calling":null}'):
        path.write_text(text)
        with pytest.raises(ConfigError), open_told(path):
            pass


def test_the_command_looks_and_calls_once(waiting: Waiting) -> None:
    waiting.submit("one")
    folder = waiting.folder
    (folder / "consortium.json").write_bytes(waiting.made.consortium.to_bytes())
    words = [
        "approvals", "watch", OWNER, "--broker", str(waiting.broker), "--webhook",
        str(folder / "hook"), "--memory", str(folder / "told.json"), "--consortium",
        str(folder / "consortium.json"), "--once", "--json",
    ]  # fmt: skip
    with receiving() as (url, calls):
        (folder / "hook").write_text(f"{url}/x\n")
        answers = [CliRunner().invoke(app, words) for _ in range(2)]
    assert [json.loads(done.stdout)["state"] for done in answers] == ["called", "nothing-new"]
    assert len(calls) == 1
    text = (folder / "told.json").read_text() + "".join(done.output for done in answers)
    assert waiting.made.locked.recipe.name not in text
