"""Running a broker: asked how it is, set back, stopped, killed, starved. Real processes."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from broker_site import BrokerSite, ProcessSite, broker_site, process_site
from carrying import carries
from polling import wait_until
from release_world import served_world
from typer.testing import CliRunner
from world import NOW, OWNERS, identity

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.broker.store.backup import back_up, restore
from sealtrain.cli import app
from sealtrain.cli.programs import SideProgram
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import Grant, renew
from sealtrain.client.watch import observe
from sealtrain.consortium.receipts import Anchor, receipt_digest
from sealtrain.errors import LedgerInconsistent, SealtrainError
from sealtrain.ledger.store import LedgerStore
from sealtrain.ledger.witness import memory
from sealtrain.release.messages import RenewalAnswer, RenewalRequest
from sealtrain.sealing.errors import CheckpointRefused

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("site")) as made:
        yield made


def run(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    if isinstance(done.exception, SealtrainError):
        return done.exception.exit_code, done.exception
    return done.exit_code, json.loads(done.stdout)


def test_status_tells_what_an_operator_asks(
    site: BrokerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.serving("status") as client:
        site.decide(client, OWNERS[0])
        broker_file = str(site.broker_file(client))
        code, shown = run("broker", "status", "--broker", broker_file)
        assert code == 0
        assert shown["ready"] is True
        assert shown["consortium"]["approve"] == 2
        assert shown["ledger"]["size"] == "1"
        assert shown["url"] == client.url

        collateral = Path(site.fields["collateral"].removeprefix("file:"))
        kept = collateral.read_bytes()
        try:
            collateral.write_bytes(b"{")
            assert client.health().status == "ok"
            code, shown = run("broker", "status", "--broker", broker_file)
            assert (code, shown["ready"]) == (4, False)
        finally:
            collateral.write_bytes(kept)
        client.ready()
    code, error = run("broker", "status", "--broker", broker_file)
    assert code == 4
    assert isinstance(error, BrokerUnreachable)


def test_a_broker_set_back_to_an_old_backup_is_refused_by_who_saw_more(
    site: BrokerSite, tmp_path: Path
) -> None:
    kept = tmp_path / "memory.json"

    def look(client: BrokerClient) -> int:
        with memory(kept) as remembered:
            head = observe(
                client,
                remembered,
                site.consortium,
                attest=site.key(client),
                now=system_clock(),
            )
            return head.size

    backup, state = str(tmp_path / "old.tar"), str(site.state("set-back"))
    with site.serving("busy") as client:
        site.decide(client, OWNERS[0])
        assert look(client) == 1
        code, made = run("broker", "backup", "--state", str(site.state("busy")), "--out", backup)
        assert (code, made["ledger_size"]) == (0, 1)
        site.decide(client, OWNERS[1])
        site.decide(client, OWNERS[2], "revoke")
        assert look(client) == 3
    code, done = run("broker", "restore", backup, "--state", state)
    assert (code, done["ledger_size"]) == (0, 1)
    with site.serving("set-back") as client:
        with pytest.raises(LedgerInconsistent):
            look(client)
        # Growing past what they saw does not hide it.
        for owner in OWNERS:
            site.decide(client, owner)
        with pytest.raises(LedgerInconsistent):
            look(client)
    code, error = run("broker", "restore", backup, "--state", state)
    assert (code, error.code) == (2, "already-exists")


def test_the_document_of_the_service_is_strict_and_names_every_path() -> None:
    done = CliRunner().invoke(app, ["broker", "openapi", "--boot-auth"])
    document = json.loads(done.stdout)
    assert {"/", "/bootAuth/app", "/bootAuth/kms", "/v1/ready", "/v1/releases"} <= set(
        document["paths"]
    )
    assert (
        "/bootAuth/app"
        not in json.loads(CliRunner().invoke(app, ["broker", "openapi"]).stdout)["paths"]
    )
    loose = {
        name
        for name, schema in document["components"]["schemas"].items()
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False
    }
    assert loose == set()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert {"200", "400", "429", "500"} <= set(operation["responses"]), path
            if method == "post" and path != "/v1/manifests":
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                name = schema["$ref"].rpartition("/")[2]
                assert document["components"]["schemas"][name]["additionalProperties"] is False


def test_owners_approve_a_kms_at_the_command_line(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        world.clock.now = system_clock()
        (tmp_path / "consortium.json").write_bytes(world.consortium.to_bytes())
        (tmp_path / "broker.yaml").write_text(world.pin.model_copy(update={"url": url}).to_yaml())
        document = {"manifest_version": 2, "name": "kms", "runner": "docker-compose"}
        (tmp_path / "kms.json").write_text(json.dumps(document))

        def decide(owner: str, *more: str) -> Any:
            identity(owner).save(tmp_path / f"{owner}.{len(more)}.json")
            code, shown = run(
                "broker",
                "approve-kms",
                str(tmp_path / "kms.json"),
                "--identity",
                str(tmp_path / f"{owner}.{len(more)}.json"),
                "--broker",
                str(tmp_path / "broker.yaml"),
                "--consortium",
                str(tmp_path / "consortium.json"),
                "--yes",
                *more,
            )
            assert code == 0, shown
            return shown

        assert decide("hospital-a")["sealed"] is True
        assert decide("hospital-b")["sealed"] is False
        assert decide("hospital-c", "--end")["revoked"] is True


# --- Stopped, killed, starved ---------------------------------------------------------------------


@pytest.mark.slow
def test_told_to_stop_it_finishes_what_it_began(tmp_path: Path) -> None:
    with process_site(tmp_path) as site:
        process, url = site.start()
        body = canonical_json(
            {
                "version": 1,
                "consortium_id": site.world.consortium.consortium_id,
                "purpose": "release",
            }
        )
        head = f"POST /v1/challenges HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        host, port = urlsplit(url).hostname, urlsplit(url).port
        assert host
        with socket.create_connection((host, port), timeout=10) as slow:
            slow.sendall(head.encode() + body[:10])
            time.sleep(0.3)
            process.send(signal.SIGTERM)
            time.sleep(0.5)
            with pytest.raises(OSError, check=carries(errno=errno.ECONNREFUSED)):
                socket.create_connection((host, port), timeout=2).close()
            assert not process.gone
            slow.sendall(body[10:])
            assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        assert process.wait(within=15) == 0


@dataclass
class Acknowledged:
    """What clients were told is done."""

    grants: list[Grant] = field(default_factory=list)
    decisions: list[tuple[int, str]] = field(default_factory=list)
    tried: int = 0
    odd: list[BaseException] = field(default_factory=list)


def load(site: ProcessSite, url: str, told: Acknowledged, stop: threading.Event) -> list[Any]:
    """Threads that ask for releases and hand in decisions until they are stopped."""

    def insist(act: Callable[[BrokerClient], None]) -> None:
        while not stop.is_set():
            try:
                me, broker = identity("hospital-c").signer, site.attested.broker_id
                with BrokerClient(
                    url, timeout=5.0, signer=me, broker=broker, clock=lambda: NOW
                ) as client:
                    while not stop.is_set():
                        told.tried += 1
                        act(client)
            except BrokerUnreachable:
                stop.wait(0.02)  # it was killed, or cannot write
            except BaseException as error:
                told.odd.append(error)
                return

    def release(client: BrokerClient) -> None:
        told.grants.append(
            site.world.obtain(wire=client, attested=site.attested, run_id=os.urandom(16).hex())
        )

    def decide(client: BrokerClient) -> None:
        envelope = site.world.decision("hospital-c", datasets=(), signed_at=NOW)
        told.decisions.append((client.hand_in("approval", envelope), envelope.digest))

    threads = [threading.Thread(target=insist, args=(act,)) for act in (release, decide, release)]
    for thread in threads:
        thread.start()
    return threads


def assert_all_is_recorded(site: ProcessSite, told: Acknowledged) -> None:
    """The ledger holds together, with everything acknowledged, and fits the database."""
    meta = {"origin": site.attested.origin, "key_id": site.world.keyring.signer.key_id}
    store = LedgerStore(site.state / "ledger.sqlite", meta)
    try:
        size = store.recompute()
        entries: list[Any] = [parse_json(data) for data in store.read(0, size)]
    finally:
        store.close()
    receipts = {
        entry["body"]["receipt_digest"]: entry["body"]
        for entry in entries
        if entry["kind"] == "release"
    }
    for grant in told.grants:
        found = receipts[receipt_digest(grant.receipts[-1].envelope)]
        assert (found["run_id"], found["lease_id"]) == (grant.run_id, grant.lease_id)
    for index, digest in told.decisions:
        assert entries[index]["body"]["digest"] == digest
    with closing(sqlite3.connect(site.state / "broker.sqlite")) as db:
        runs = {row[0] for row in db.execute("SELECT run_id FROM runs")}
        leases = {row[0] for row in db.execute("SELECT lease_id FROM leases")}
        decided = {row[0] for row in db.execute("SELECT digest FROM decisions")}
    assert {grant.run_id for grant in told.grants} <= runs
    assert {digest for _, digest in told.decisions} <= decided
    # What the database says was released, the ledger says too.
    assert runs <= {body["run_id"] for body in receipts.values()}
    assert leases <= {body["lease_id"] for body in receipts.values()}
    back_up(site.state, site.folder / "check.tar", now=NOW)
    restore(site.folder / "check.tar", site.folder / "check", now=NOW)


@pytest.mark.slow
@pytest.mark.claim("C43")
def test_killed_at_any_moment_it_lost_nothing_and_released_nothing_unrecorded(
    tmp_path: Path,
) -> None:
    chosen = random.Random(20261121)  # noqa: S311  # moments, not keys
    told, stop = Acknowledged(), threading.Event()
    with process_site(tmp_path) as site:
        process, url = site.start()
        threads = load(site, url, told, stop)
        kills, deadline = 0, time.monotonic() + 12
        try:
            while kills < 4 and time.monotonic() < deadline:
                time.sleep(chosen.uniform(0.1, 0.7))
                assert process.kill() == -signal.SIGKILL
                kills += 1
                process, again = site.start()  # audits its ledger, or does not start
                assert again == url
            before = len(told.grants)
            wait_until(lambda: len(told.grants) > before, 10)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            assert process.end() == 0
        assert [repr(error) for error in told.odd] == []
        assert kills >= 2
        assert len(told.grants) > before
        assert told.decisions
        assert told.tried > len(told.grants) + len(told.decisions)  # some were cut off
        assert_all_is_recorded(site, told)


class Struck(BrokerClient):
    """A client whose broker is killed so long after a renewal was sent."""

    def __init__(self, url: str, process: SideProgram, seconds: float) -> None:
        super().__init__(url, timeout=20.0)
        self._kill = threading.Timer(seconds, process.kill)

    def renew(self, request: RenewalRequest, lease_key: Secret) -> RenewalAnswer:
        self._kill.start()
        try:
            return super().renew(request, lease_key)
        finally:
            self._kill.join()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.claim("C43")
def test_killed_during_a_renewal_it_takes_the_same_again_and_nothing_older(tmp_path: Path) -> None:
    """Whether it had decided, the guest cannot tell; it asks again and nothing goes back."""
    moments, cut = (0.0, 0.01, 0.04), 0
    with process_site(tmp_path) as site:
        world, attested = site.world, site.attested
        collect = world.collect(world.guest())
        process, url = site.start()
        try:
            with BrokerClient(url) as client:
                grant = world.obtain(wire=client, attested=attested)
            told = [grant]
            for counter, moment in enumerate(moments, start=1):
                checkpoint = (counter, sha256_hex(b"%d" % counter))
                with Struck(url, process, moment) as client:
                    try:
                        told.append(renew(client, attested, collect, grant, checkpoint=checkpoint))
                    except BrokerUnreachable:
                        cut += 1
                assert process.end() == -signal.SIGKILL
                process, again = site.start()  # audits its ledger, or does not start
                assert again == url
                with BrokerClient(url) as client:
                    grant = renew(client, attested, collect, grant, checkpoint=checkpoint)
                    assert grant.latest_checkpoint == Anchor(counter=counter, digest=checkpoint[1])
                    told.append(grant)
                    old = (counter - 1, checkpoint[1])
                    with pytest.raises(CheckpointRefused):
                        renew(client, attested, collect, grant, checkpoint=old)
        finally:
            process.end()
        assert cut
        assert {lease.lease_id for lease in told} == {grant.lease_id}
        meta = {"origin": attested.origin, "key_id": world.keyring.signer.key_id}
        store = LedgerStore(site.state / "ledger.sqlite", meta)
        try:
            entries: list[Any] = [parse_json(data) for data in store.read(0, store.recompute())]
        finally:
            store.close()
        recorded = {entry["body"].get("receipt_digest") for entry in entries}
        assert {receipt_digest(answer.receipts[-1].envelope) for answer in told} <= recorded
        renewals = [entry["body"]["lease_id"] for entry in entries if entry["kind"] == "renewal"]
        assert set(renewals) == {grant.lease_id}
        # Each moment's was taken at most once before the kill, and once after it.
        assert len(moments) <= len(renewals) <= 2 * len(moments)
        with closing(sqlite3.connect(site.state / "broker.sqlite")) as db:
            anchored = db.execute("SELECT run_id, checkpoint_counter FROM runs").fetchall()
        assert anchored == [(grant.run_id, len(moments))]


@pytest.mark.slow
@pytest.mark.claim("C43")
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    told, stop = Acknowledged(), threading.Event()
    with process_site(tmp_path) as site:
        largest = max(path.stat().st_size for path in site.state.iterdir())
        process, url = site.start(max_file=largest + (256 << 10))
        threads = load(site, url, told, stop)
        try:
            deadline = time.monotonic() + 15
            refused = 0
            while refused < 3 and time.monotonic() < deadline:
                failed = BrokerUnreachable("")
                try:
                    with BrokerClient(url) as client:
                        site.world.obtain(wire=client, attested=site.attested)
                except BrokerUnreachable as error:
                    failed = error
                refused += failed.got == "HTTP 503 unreachable"
                time.sleep(0.02)
            assert refused == 3
            assert httpx2.get(f"{url}/v1/health", trust_env=False).status_code == 200
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            process.end()
        assert [repr(error) for error in told.odd] == []
        assert told.grants
        process, url = site.start()  # with room again
        with BrokerClient(url) as client:
            site.world.obtain(wire=client, attested=site.attested)
        assert process.end() == 0
        assert_all_is_recorded(site, told)
