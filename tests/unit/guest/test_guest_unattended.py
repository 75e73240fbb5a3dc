"""An unattended run: what it brings, what it takes over, what it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from channel_world import COMPOSE, NOW, guest
from http_server import running
from old_store import old_store
from storage_world import Server, serving
from world import simulated_policy

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.cli.credential_lender import lending
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.storecredentials import Lender
from sealtrain.client.ticket import RunTicket, parse_ticket
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.errors import SealtrainError
from sealtrain.guest.run_end import Outcome
from sealtrain.guest.series import note, read_remembered
from sealtrain.guest.settings import RunSettings, load_run, save_run
from sealtrain.guest.unattended import PREVIOUS_FOLDER, STATUS_NAME, Reports, run_unattended
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.store import SealedStore
from sealtrain.storage.errors import OutputStoreInvalid, StorageRefused, StorageUnreachable
from sealtrain.storage.outputs import OutputStore
from sealtrain.storage.pieces import measure_pieces

pytestmark = pytest.mark.long

RUN = "ab" * 16
KEY = DataKey(bytes(32))


class Booted:
    """The guest's own interface, as far as a supervisor asks it."""

    def app_compose(self) -> bytes:
        return COMPOSE

    def evidence(self, binding: Any) -> Any:
        return guest().collect(binding)


class Machine:
    """A guest's folder, and what its supervisor said and slept."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.out = folder / "out"
        self.base = folder / "base"
        self.now = 1.0
        self.waited: list[str] = []
        self.missed: list[str] = []

    @property
    def settings(self) -> RunSettings:
        return RunSettings(
            lock=self.out.parent / "lock",
            platform="simulator",
            guest="guest.sock",
            collateral=None,
            brokers=(),
            data=(),
            base=self.base,
            out=self.out,
            previous=self.out.parent / PREVIOUS_FOLDER,
        )

    def begin(self, _stored: Any) -> Outcome:
        self.out.mkdir(exist_ok=True)
        save_run(self.settings, RUN)
        return self.finish()

    def finish(self) -> Outcome:
        with SealedStore(self.out / "model", KEY, label="model").write("weights", {}) as file:
            file.write(b"trained")
        (self.out / "manifest.json").write_bytes(b"{}")
        return Outcome(
            run_id=load_run(self.out)[1],
            simulated=True,
            steps=3,
            metrics={},
            history=[],
            model=self.out / "model",
            manifest=self.out / "manifest.json",
        )

    def again(self, _stored: Any) -> Outcome:
        (self.out / "resumed").touch()
        return self.finish()

    def run(self, ticket: RunTicket, **changed: Any) -> Outcome | None:
        reports = Reports(
            waits=lambda error, _: self.waited.append(error.code),
            missed=lambda error: self.missed.append(error.code),
        )
        given: dict[str, Any] = {"begin": self.begin, "again": self.again}
        return run_unattended(
            self.settings,
            ticket,
            guest=Booted,  # type: ignore[arg-type]
            reports=reports,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            **given | changed,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def status(self) -> Any:
        return json.loads((self.out.parent / STATUS_NAME).read_bytes())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "guest")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "stores") as running:
        running.root.mkdir()
        yield running


PIN: dict[str, Any] = {
    "version": 2,
    "url": "http://127.0.0.1:1",
    "signing_key": to_base64(bytes(32)),
    "compose_hash": "ab" * 32,
    "appraisal": simulated_policy().to_dict(),
}


def ticket(**fields: Any) -> RunTicket:
    whole = {"version": 1, "role": "train", "brokers": [PIN], "data": ["/data"], **fields}
    return parse_ticket(canonical_json(whole))


def model(server: Server, name: str, **files: bytes) -> dict[str, Any]:
    """A model at the server, as a ticket names it."""
    folder = server.root / "models" / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    described = {file: measure_pieces(folder / file).to_dict() for file in files}
    return {"address": f"{server.url}/models/{name}", "files": described}


def test_a_run_without_a_store_leaves_its_folder_and_its_status(machine: Machine) -> None:
    done = machine.run(ticket())
    assert done is not None
    assert done.steps == 3
    assert machine.status == {
        "version": 1, "run_id": RUN, "state": "completed", "code": None, "attempts": 1,
    }  # fmt: skip
    assert machine.run(ticket()) is None


def test_models_are_brought_to_where_the_recipe_names_them(
    machine: Machine, server: Server
) -> None:
    place = model(server, "tiny", weights=b"w" * 1000, config=b"{}")
    machine.run(ticket(models={"models/base": place}))
    assert (machine.base / "models" / "base" / "weights").read_bytes() == b"w" * 1000
    assert (machine.base / "models" / "base" / "config").read_bytes() == b"{}"


@pytest.mark.claim("C135")
def test_a_model_of_other_bytes_is_refused_before_the_run_begins(
    machine: Machine, server: Server
) -> None:
    place = model(server, "tiny", weights=b"w" * 1000)
    (server.root / "models" / "tiny" / "weights").write_bytes(b"v" * 1000)
    with pytest.raises(ModelInvalid):
        machine.run(ticket(models={"models/base": place}, wait_seconds=60))
    assert not machine.out.exists()


@pytest.mark.parametrize(
    "path", ["../base", "/etc", "a/../../b", ".hidden", "models/base\\x", "con"]
)
def test_a_model_is_brought_to_no_other_place(path: str, server: Server) -> None:
    place = model(server, "tiny", weights=b"w")
    with pytest.raises(TicketInvalid):
        ticket(models={path: place})
    with pytest.raises(TicketInvalid):
        ticket(models={"models/base": {**place, "files": {path: place["files"]["weights"]}}})


def test_what_does_not_answer_is_waited_for_as_long_as_the_ticket_says(
    machine: Machine, server: Server
) -> None:
    server.failures = 3
    done = machine.run(ticket(store=f"{server.url}/run", wait_seconds=60))
    assert done is not None
    assert machine.waited == ["storage-unreachable"]
    server.failures = 10_000
    other = Machine(machine.out.parent.parent / "other")
    with pytest.raises(StorageUnreachable):
        other.run(ticket(store=f"{server.url}/other", wait_seconds=8))
    assert other.now <= 9.1
    assert not other.out.exists()


def test_owners_are_waited_for_before_the_run_has_begun(machine: Machine) -> None:
    tries = machine.out.parent / "tries"

    def begin(stored: Any) -> Outcome:
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if len(tries.read_text()) < 3:
            raise ApprovalsMissing("not yet", check="approvals")
        return machine.begin(stored)

    assert machine.run(ticket(wait_seconds=600), begin=begin) is not None
    assert machine.waited == ["approvals-missing"] * 2
    tries.unlink()
    impatient = Machine(machine.out.parent.parent / "impatient")
    with pytest.raises(ApprovalsMissing):
        impatient.run(ticket(), begin=begin)
    assert impatient.status["state"] == "failed"
    assert impatient.status["code"] == "approvals-missing"


@pytest.mark.parametrize(
    ("fault", "code"),
    [(RecordInvalid("row 7 is a record"), "record-invalid"), (RuntimeError("canary"), "internal")],
    ids=["refusal", "bug"],
)
def test_a_run_that_failed_leaves_a_code_and_no_text(
    fault: Exception, code: str, machine: Machine, server: Server
) -> None:
    def begin(_stored: Any) -> Outcome:
        raise fault

    with pytest.raises((SealtrainError, RuntimeError)):
        machine.run(ticket(store=f"{server.url}/run"), begin=begin)
    left = (server.root / "run" / "index.json").read_bytes()
    assert json.loads(left)["state"] == "failed"
    assert json.loads(left)["code"] == code
    assert b"row 7" not in left + (machine.out.parent / STATUS_NAME).read_bytes()
    assert b"canary" not in left


def left_by_another_guest(server: Server, folder: Path, run_id: str = RUN) -> OutputStore:
    """A run with one checkpoint in the store."""
    for part, name in (
        ("checkpoints", "checkpoint-00000001-0000000010"),
        ("journal", "journal-00000001"),
    ):
        with SealedStore(folder / part, KEY, label=part).write(name, {}) as file:
            file.write(b"state")
    store = OutputStore(server.folder("run"), sha256_hex(COMPOSE))
    store.leave(folder, run_id=run_id, state="checkpointed", attempts=1)
    return store


def test_a_fresh_guest_takes_the_run_over(machine: Machine, server: Server, tmp_path: Path) -> None:
    left_by_another_guest(server, tmp_path / "gone", "cd" * 16)
    done = machine.run(ticket(store=f"{server.url}/run"))
    assert done is not None
    assert done.run_id == "cd" * 16
    assert (machine.out / "resumed").exists()
    assert len(list((machine.out / "checkpoints").iterdir())) == 1


def test_a_run_that_sealed_nothing_yet_is_the_same_run_on_a_fresh_guest(
    machine: Machine, server: Server, tmp_path: Path
) -> None:
    store = OutputStore(server.folder("run"), sha256_hex(COMPOSE))
    store.leave(tmp_path, run_id="cd" * 16, state="started", attempts=1)
    done = machine.run(ticket(store=f"{server.url}/run"))
    assert done is not None
    assert done.run_id == "cd" * 16
    assert (machine.out / "resumed").exists()


def test_a_fresh_guest_asks_for_the_members_that_the_run_began_with(
    machine: Machine, server: Server, tmp_path: Path
) -> None:
    """The series grew meanwhile; the number is nowhere on the fresh machine but in the store."""
    gone = tmp_path / "gone"
    store = left_by_another_guest(server, gone, "cd" * 16)
    note(gone, {"clinic-a/notes": 2})
    store.leave(gone, run_id="cd" * 16, state="checkpointed", series={"clinic-a/notes": 2})
    seen = tmp_path / "seen"

    def again(stored: Any) -> Outcome:
        seen.write_text(repr(read_remembered(machine.out)))
        return machine.again(stored)

    machine.run(ticket(store=f"{server.url}/run"), again=again)
    assert seen.read_text() == repr({("clinic-a", "notes"): 2})
    index = OutputStore(server.folder("run"), sha256_hex(COMPOSE)).read()
    assert index is not None
    assert (index.state, index.series) == ("completed", {"clinic-a/notes": 2})


FOLLOWS = {"manifest_digest": "ab" * 32, "number": 2}


@pytest.mark.claim("C204")
def test_the_outputs_of_the_run_before_are_brought_from_its_store(
    machine: Machine, server: Server, tmp_path: Path
) -> None:
    before = Machine(tmp_path / "before")
    before.run(ticket(store=f"{server.url}/first"))
    previous = machine.out.parent / PREVIOUS_FOLDER
    there = tmp_path / "there"

    def begin(stored: Any) -> Outcome:
        there.write_text(" ".join(sorted(path.name for path in previous.rglob("*.*"))))
        return machine.begin(stored)

    given = ticket(previous=f"{server.url}/first", continues=FOLLOWS)
    machine.run(given, begin=begin)
    assert there.read_text() == "manifest.json weights.sealed"
    assert (previous / "manifest.json").read_bytes() == b"{}"


@pytest.mark.claim("C204")
@pytest.mark.parametrize("left", ["nothing", "unfinished", "another document"])
def test_a_store_without_the_run_before_is_refused_before_anything_begins(
    machine: Machine, server: Server, tmp_path: Path, left: str
) -> None:
    if left == "unfinished":
        store = OutputStore(server.folder("first"), sha256_hex(COMPOSE))
        store.leave(tmp_path, run_id="cd" * 16, state="started")
    elif left == "another document":
        store = OutputStore(server.folder("first"), "ef" * 32)
        store.leave(tmp_path, run_id=None, state="waiting")
    with pytest.raises(OutputStoreInvalid):
        machine.run(ticket(previous=f"{server.url}/first", continues=FOLLOWS))
    assert not machine.out.exists()


def test_outputs_of_a_run_before_are_of_a_run_that_is_followed() -> None:
    with pytest.raises(TicketInvalid):
        ticket(previous="/runs/one")


def test_what_was_finished_elsewhere_is_not_done_again(
    machine: Machine, server: Server, tmp_path: Path
) -> None:
    machine.run(ticket(store=f"{server.url}/run"))
    late = Machine(tmp_path / "late")
    assert late.run(ticket(store=f"{server.url}/run")) is None
    assert not late.out.exists()


def test_what_was_finished_while_the_store_was_away_is_left_there_later(
    machine: Machine, server: Server
) -> None:
    machine.run(ticket())
    assert machine.run(ticket(store=f"{server.url}/run")) is None
    assert (server.root / "run" / "manifest.json").read_bytes() == b"{}"


@pytest.mark.claim("C134")
def test_a_store_of_another_document_ends_it_before_anything_is_written(
    machine: Machine, server: Server, tmp_path: Path
) -> None:
    OutputStore(server.folder("run"), "ef" * 32).leave(tmp_path, run_id=None, state="waiting")
    with pytest.raises(OutputStoreInvalid):
        machine.run(ticket(store=f"{server.url}/run", wait_seconds=60))
    assert not machine.out.exists()


def test_credentials_are_asked_for_first_and_reach_the_runs_process(
    machine: Machine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEALTRAIN_STORE_TOKEN", "")
    monkeypatch.setenv("SEALTRAIN_STORE_URL", "")
    server.token = "lent-5521"  # noqa: S105  # of this test's own server
    policy = simulated_policy()
    lent = {"SEALTRAIN_STORE_TOKEN": server.token, "SEALTRAIN_STORE_URL": server.url}
    lender = Lender(lent, compose_hash=sha256_hex(COMPOSE), policy=policy, clock=lambda: NOW)
    with pytest.raises(StorageUnreachable):
        machine.run(ticket(store=f"{server.url}/run"))
    with lending(lender, "127.0.0.1:0") as lent_by, running(lent_by):
        url = f"http://127.0.0.1:{lent_by.server_port}"
        done = machine.run(ticket(store=f"{server.url}/run", credentials=url))
    assert done is not None
    everything = b"".join(path.read_bytes() for path in server.root.rglob("*") if path.is_file())
    assert b"lent-5521" not in everything


@pytest.mark.claim("C635")
@pytest.mark.parametrize("takes", [0, 1, 2])
def test_a_run_that_cannot_store_ends_with_its_reason(
    takes: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its process starts, while it waits for a checkpoint to be stored, or at its end."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    begun = machine.out.parent / "begun"

    def begin(stored: Any) -> Outcome:
        begun.touch()
        if takes == 1:
            assert not stored(1, 300)
        return machine.begin(stored)

    with old_store(0) as store:
        store.takes = takes
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        wanted = ticket(store="s3://bucket/run", wait_seconds=3600, restarts=3)
        with pytest.raises(StorageRefused):
            machine.run(wanted, begin=begin)
    assert begun.exists() == (takes > 0)
    assert machine.now == 1.0  # it waited for nothing
    assert machine.missed == []
