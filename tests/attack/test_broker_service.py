"""Against the service itself: lies to the boot webhook, floods, slow senders, logs that tell."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from release_world import GATEWAY, ReleaseWorld, boot_info, served_world
from world import DAY, identity

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.logs import configure
from sealtrain.consortium.approvals import Decision, sign_decision
from sealtrain.consortium.decisions import kms_target
from sealtrain.errors import Unreachable
from sealtrain.ledger.entry_rules import EntryRules
from sealtrain.signing.target import Target

pytestmark = pytest.mark.long

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def booting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReleaseWorld, str]]:
    with served_world(tmp_path_factory.mktemp("boot")) as (world, url):
        yield world, url


def ask(url: str, role: str, body: bytes) -> dict[str, Any]:
    """What the KMS would read; it takes nothing but a 2xx with these three fields."""
    answered = httpx2.post(f"{url}/bootAuth/{role}", content=body, trust_env=False)
    document: dict[str, Any] = answered.json()
    assert set(document) == {"isAllowed", "gatewayAppId", "reason"}
    malformed = document["reason"].startswith(("data-invalid", "limit-exceeded"))
    assert answered.status_code == (400 if malformed else 200)
    return document


def refused_with(booting: tuple[ReleaseWorld, str], role: str, body: bytes) -> str:
    world, url = booting
    size = world.ledger.size
    told = ask(url, role, body)
    assert told["isAllowed"] is False
    assert told["gatewayAppId"] == ""
    assert world.ledger.size == size + 1
    entry: Any = world.ledger.entry(size)
    assert entry["kind"] == "refusal"
    assert entry["body"]["action"] == f"boot-{role}"
    code, _, words = told["reason"].partition(": ")
    assert words
    assert entry["body"]["code"] == code
    return code


def test_the_approved_guest_boots_and_the_kms_learns_who_answers(
    booting: tuple[ReleaseWorld, str],
) -> None:
    world, url = booting
    told = ask(url, "app", canonical_json(boot_info(world)))
    assert told == {"isAllowed": True, "gatewayAppId": GATEWAY, "reason": ""}
    about = httpx2.get(url, trust_env=False).json()
    assert about["status"] == "ok"
    assert about["gatewayAppId"] == GATEWAY
    assert about["chainId"] == 0
    assert set(about) == {
        "status",
        "kmsContractAddr",
        "ethRpcUrl",
        "gatewayAppId",
        "chainId",
        "appImplementation",
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info.update(composeHash=info["composeHash"][2:]),
        lambda info: info.update(composeHash="00" + info["composeHash"]),
        lambda info: info.update(composeHash="0x" + info["composeHash"]),
        lambda info: info.update(composeHash=info["composeHash"].upper()),
        lambda info: info.update(composeHash=info["composeHash"] + " "),
        lambda info: info.update(composeHash=[info["composeHash"]]),
        lambda info: info.update(composeHash=None),
        lambda info: info.update(appId="0x" + info["appId"]),
        lambda info: info.update(appId=info["appId"][:-2]),
        lambda info: info.update(advisoryIds="INTEL-SA-1"),
        lambda info: info.update(advisoryIds=["x" * 65]),
        lambda info: info.update(advisoryIds=["x"] * 257),
        lambda info: info.update(keyProviderInfo="0"),
        lambda info: info.update(isAllowed=True),
        lambda info: info.update(attestationMode="dstack-tdx"),
        *(
            lambda info, name=name: info.pop(name)
            for name in ("tcbStatus", "composeHash", "appId", "deviceId", "teeVariant")
        ),
    ],
)
@pytest.mark.claim("C42")
def test_a_malformed_request_boots_nothing(
    booting: tuple[ReleaseWorld, str], change: Change
) -> None:
    info = boot_info(booting[0])
    change(info)
    body = json.dumps(info).encode()
    assert refused_with(booting, "app", body) == "data-invalid"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b'{"a":1,"a":1}', b"\xff", b'"isAllowed"', b"[" * 1000]
)
def test_what_is_no_document_boots_nothing(booting: tuple[ReleaseWorld, str], body: bytes) -> None:
    assert refused_with(booting, "app", body) in ("data-invalid", "limit-exceeded")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"composeHash": "0f" * 32}, "approvals-missing"),
        ({"appId": "0f" * 20}, "approvals-missing"),
        ({"tcbStatus": "OutOfDate"}, "tcb-status-refused"),
        ({"tcbStatus": "Revoked"}, "tcb-status-refused"),
        ({"teeVariant": "dstack-amd-sev-snp"}, "platform-mismatch"),
        ({"teeVariant": ""}, "platform-mismatch"),
    ],
)
@pytest.mark.claim("C42")
def test_another_guest_does_not_boot_on_the_approval_of_this_one(
    booting: tuple[ReleaseWorld, str], changed: dict[str, str], code: str
) -> None:
    body = canonical_json(boot_info(booting[0], **changed))
    assert refused_with(booting, "app", body) == code


@pytest.mark.claim("C42")
def test_a_guest_approved_for_training_gets_no_root_keys_as_a_kms(
    booting: tuple[ReleaseWorld, str],
) -> None:
    body = canonical_json(boot_info(booting[0]))
    assert refused_with(booting, "kms", body) == "approvals-missing"


@pytest.mark.claim("C42")
def test_a_kms_that_owners_approved_boots_as_nothing_else(
    booting: tuple[ReleaseWorld, str],
) -> None:
    world, url = booting
    app_id, compose_hash = "7a" * 20, "7b" * 32
    target = kms_target(app_id=app_id, compose_hash=compose_hash)
    body = canonical_json(boot_info(world, appId=app_id, composeHash=compose_hash))
    world.approve("hospital-a", target=target, datasets=[])
    assert refused_with(booting, "kms", body) == "approvals-missing"
    world.approve("hospital-c", target=target, datasets=[])
    assert ask(url, "kms", body)["isAllowed"] is True
    assert refused_with(booting, "app", body) == "approvals-missing"
    revocation = Decision.revoke(
        consortium_id=world.consortium.consortium_id,
        brokers=world.locked.lock.brokers,
        target=target,
        signed_at=world.clock(),
    )
    world.submit(sign_decision(revocation, identity("hospital-b").signer))
    assert refused_with(booting, "kms", body) == "approval-revoked"


@pytest.mark.parametrize("approved_by", [(), ("hospital-a",)])
@pytest.mark.claim("C42")
def test_too_few_owners_boot_nothing(tmp_path: Path, approved_by: tuple[str, ...]) -> None:
    with served_world(tmp_path, approved_by=approved_by) as served:
        body = canonical_json(boot_info(served[0]))
        assert refused_with(served, "app", body) == "approvals-missing"


@pytest.mark.claim("C42")
def test_one_owner_ends_it_and_so_does_time(tmp_path: Path) -> None:
    with served_world(tmp_path) as served:
        world, url = served
        body = canonical_json(boot_info(world))
        assert ask(url, "app", body)["isAllowed"] is True
        world.clock.advance(31 * DAY)
        assert refused_with(served, "app", body) == "approval-expired"
        for owner in ("hospital-a", "hospital-b"):
            world.approve(owner)
        assert ask(url, "app", body)["isAllowed"] is True
        # Approvals of the same deployment under another recipe hash do not outweigh a revocation.
        other = Target(
            app_id=world.locked.app_id,
            compose_hash=world.locked.compose_hash,
            recipe_hash="0d" * 32,
        )
        for owner in ("hospital-a", "hospital-b"):
            world.approve(owner, target=other, datasets=[])
        world.revoke("hospital-c")
        assert refused_with(served, "app", body) == "approval-revoked"


@pytest.mark.claim("C42")
def test_without_a_ledger_it_says_nothing_that_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_world(tmp_path) as (world, url):
        body = canonical_json(boot_info(world))

        def full(*_: object) -> None:
            raise Unreachable("the disk is full")

        monkeypatch.setattr(world.ledger, "append", full)
        for document in (body, b"{}"):
            answered = httpx2.post(f"{url}/bootAuth/app", content=document, trust_env=False)
            assert answered.status_code == 503
            assert "isAllowed" not in answered.text


def test_a_wrong_method_is_told_every_right_one(booting: tuple[ReleaseWorld, str]) -> None:
    _, url = booting
    answered = httpx2.request("TRACE", f"{url}/v1/approvals", trust_env=False)
    assert answered.status_code == 405
    assert answered.headers["allow"] == "GET, POST"
    absent = httpx2.get(f"{url}/v1/ledger/proof", params={"index": 10**6}, trust_env=False)
    assert absent.status_code == 404


def test_an_audit_finds_a_boot_that_nobody_approved(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        ask(url, "app", canonical_json(boot_info(world)))
        entries: list[Any] = world.ledger.entries()
    assert entries[-1]["kind"] == "boot"

    def found(change: Change, until: int | None = None) -> list[str]:
        rules = EntryRules(world.consortium)
        said: list[str] = []
        for entry in [*entries[:-1][:until], entries[-1]]:
            body = json.loads(json.dumps(entry["body"]))
            if entry["kind"] == "boot":
                change(body)
            said += rules.problems(entry["kind"], world.clock(), body)
        return said

    assert found(lambda _body: None) == []
    assert "with 1 of 2 approvals" in " ".join(found(lambda _body: None, until=-1))
    assert "with 0 of 2 approvals" in " ".join(found(lambda body: body.update(app_id="0f" * 20)))
    assert "another role" in " ".join(found(lambda body: body.update(action="boot-kms")))
    assert found(lambda body: body.pop("device_id"))


def test_where_it_is_off_there_is_no_webhook(tmp_path: Path) -> None:
    with served_world(tmp_path, gateway_app_id=None) as (world, url):
        for path in ("/", "/bootAuth/app", "/bootAuth/kms"):
            answered = httpx2.post(
                url + path, content=canonical_json(boot_info(world)), trust_env=False
            )
            assert answered.status_code == 404


# --- Floods ---------------------------------------------------------------------------------------


@pytest.mark.claim("C44")
def test_one_address_does_not_use_up_what_others_need(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=100, posts_per_address=3)
    with served_world(tmp_path, limits=limits, proxies=("127.0.0.1",)) as (world, url):
        body = canonical_json(boot_info(world))

        def status(address: str) -> int:
            headers = {"x-forwarded-for": address}
            answered = httpx2.post(
                f"{url}/bootAuth/app", content=body, headers=headers, trust_env=False
            )
            if answered.status_code == 429:
                assert answered.json()["error"]["code"] == "too-many-requests"
            return answered.status_code

        assert [status("192.0.2.1") for _ in range(5)] == [200, 200, 200, 429, 429]
        assert status("192.0.2.2") == 200
        # One who has a /64 has one share.
        assert [status(f"2001:db8::{n}") for n in range(1, 5)] == [200, 200, 200, 429]
        assert status("2001:db8:0:1::1") == 200
        world.clock.advance(60)
        assert status("192.0.2.1") == 200


def test_the_word_of_a_caller_on_its_address_counts_for_nothing(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=100, posts_per_address=2)
    with served_world(tmp_path, limits=limits) as (world, url):
        body = canonical_json(boot_info(world))
        codes = [
            httpx2.post(
                f"{url}/bootAuth/app",
                content=body,
                headers={"x-forwarded-for": f"192.0.2.{n}"},
                trust_env=False,
            ).status_code
            for n in range(3)
        ]
        assert codes == [200, 200, 429]


QUICK = BrokerLimits(
    posts_per_minute=10_000, head_seconds=0.6, body_seconds=0.8, connections_per_address=8
)


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    assert host
    assert port
    with socket.create_connection((host, port), timeout=5) as open_socket:
        yield open_socket


def dribble(url: str, first: bytes, rest: bytes, seconds: float) -> tuple[float, bytes]:
    """Send ``rest`` byte by byte; return when the broker closed and what it said."""
    began, said = time.monotonic(), b""
    with connected(url) as slow:
        slow.sendall(first)
        slow.settimeout(0.1)
        for byte in rest:
            if time.monotonic() - began > seconds:
                break
            try:
                slow.sendall(bytes([byte]))
                got = slow.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            said += got
            if not got:
                break
        else:
            raise AssertionError("all of it was taken")
    return time.monotonic() - began, said


@pytest.mark.parametrize(
    ("first", "rest", "answer"),
    [
        (b"", b"GET /v1/health HTTP/1.1\r\nx: " + b"a" * 200, b""),
        (b"GET /v1/health HTTP/1.1\r\n", b"x: 1\r\n" * 40, b""),
        (
            b"POST /v1/challenges HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n",
            b" " * 400,
            b"HTTP/1.1 408",
        ),
        (
            b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n",
            b" " * 400,
            b"HTTP/1.1 404",
        ),
    ],
)
@pytest.mark.claim("C44")
def test_who_sends_byte_by_byte_is_cut_off_while_others_are_served(
    tmp_path: Path, first: bytes, rest: bytes, answer: bytes
) -> None:
    with served_world(tmp_path, limits=QUICK) as (_world, url):
        served: list[float] = []
        stop = threading.Event()

        def others() -> None:
            with httpx2.Client(base_url=url, trust_env=False) as client:
                while not stop.wait(0.05):
                    began = time.monotonic()
                    assert client.get("/v1/health").status_code == 200
                    served.append(time.monotonic() - began)

        other = threading.Thread(target=others)
        other.start()
        try:
            seconds, said = dribble(url, first, rest, 10)
        finally:
            stop.set()
            other.join()
        assert seconds < 5
        assert said.startswith(answer)
        assert b"200" not in said[:16]
        assert len(served) >= 3
        assert max(served) < 2


@pytest.mark.claim("C44")
def test_one_address_does_not_hold_every_connection(tmp_path: Path) -> None:
    limits = BrokerLimits(connections_per_address=4, head_seconds=3)
    with served_world(tmp_path, limits=limits) as (_world, url), ExitStack() as held:
        sockets = [held.enter_context(connected(url)) for _ in range(6)]
        closed = 0
        for socket in sockets:
            socket.settimeout(0.5)
            try:
                closed += socket.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed += 1
        assert closed == 2


# --- Logs and numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.claim("C44")
def test_the_log_names_no_record_and_no_secret(
    tmp_path: Path, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    kept = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        configure(form)
        with served_world(tmp_path) as (world, url), httpx2.Client(trust_env=False) as client:
            marker = "rosebud" * 5
            info = boot_info(world)
            client.post(f"{url}/bootAuth/app", content=canonical_json(info))
            client.post(f"{url}/bootAuth/app", content=json.dumps({marker: marker}))
            client.post(f"{url}/v1/releases?{marker}=1", content=f'{{"{marker}":1}}')
            client.get(f"{url}/{marker}/{marker}", headers={"authorization": marker})
            client.get(f"{url}/v1/keys", params={"app_id": marker})
            monkeypatch.setattr(type(world.broker.registry), "tally", _bug(marker))
            failed = client.get(
                f"{url}/v1/approvals",
                params={"app_id": "0" * 40, "compose_hash": "0" * 64, "recipe_hash": "0" * 64},
            )
            assert failed.status_code == 500
            request_id = failed.headers["x-request-id"]
            assert marker not in failed.text
    finally:
        logging.getLogger().handlers, _ = kept
        logging.getLogger().setLevel(kept[1])
    text = log.getvalue()
    assert "rosebud" not in text
    assert info["composeHash"] not in text
    assert "Traceback" not in text
    assert request_id in text
    if form == "json":
        lines = [json.loads(line) for line in text.splitlines()]
        requests = [line for line in lines if line["logger"] == "sealtrain.broker.requests"]
        assert len(requests) == 6
        assert {
            "time",
            "level",
            "message",
            "request_id",
            "method",
            "path",
            "status",
            "code",
        } <= set(requests[0])
        assert [line["path"] for line in requests[:2]] == ["/bootAuth/app"] * 2
        assert requests[3]["path"] == "unknown"
        assert [line["code"] for line in requests] == [
            None,
            "data-invalid",
            "data-invalid",
            "data-invalid",
            "data-invalid",
            "internal",
        ]


def _bug(words: str) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise RuntimeError(words)

    return fail
