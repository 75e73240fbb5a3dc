"""The recovery guide works as it stands: every command of it is run in its order.

A broker's document, which is for hardware, becomes a broker in a thread at the same address, with a
root secret in a file where it stands in the guest and another file for another one; the engineer's
``lock`` writes the deployment document of a recipe that this installation need not measure.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from ports import free_port
from typer.testing import CliRunner
from world import OWNERS, identity, lock_changed

from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.serve import running
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.consortium.errors import ApprovalsMissing, ApprovalUnknown, ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import SuccessionFile
from sealtrain.errors import LedgerInconsistent, SealtrainError, SignatureInvalid
from sealtrain.keys.derive import recipe_key
from sealtrain.keys.identity import Identity
from sealtrain.keys.uris import root_secret
from sealtrain.release.errors import AnswerInvalid
from sealtrain.sealing.errors import NoStanza
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.stanza import BrokerBinding, find_stanza, unwrap_for_owner, unwrap_for_recipe
from sealtrain.signing.errors import BrokerMismatch

pytestmark = [pytest.mark.long, pytest.mark.claim("C62")]

A, B, C = OWNERS
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "recovery.md"
ASKS = {("consortium", "propose"), ("consortium", "sign"), ("approve",), ("revoke",)}
RECORDS = '{"prompt": "a", "completion": "b"}\n' * 3


def commands(section: str) -> list[list[str]]:
    """Words of every command of one section of the guide; ``""`` is what stands before all."""
    parts = re.split(r"^## (.*)$", GUIDE.read_text("utf-8"), flags=re.MULTILINE)
    named = dict(zip(["", *parts[1::2]], parts[0::2], strict=True))
    blocks = re.findall(r"^```console\n(.*?)^```", named[section], re.MULTILINE | re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    return [shlex.split(line)[2:] for line in joined.splitlines() if line.startswith("$ sealtrain")]


@dataclass
class People:
    """Owners, an engineer and an operator who read the guide in one folder."""

    site: BrokerSite
    port: int
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def folder(self) -> Path:
        return self.site.folder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *words: str) -> Any:
        """One command, which must succeed."""
        asked = ["--yes"] if {tuple(words[:1]), tuple(words[:2])} & ASKS else []
        done = CliRunner().invoke(app, [*words, *asked, "--json"])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, (words, done.output)
        return json.loads(done.stdout)

    def refused(self, error: type[SealtrainError], *words: str) -> None:
        with pytest.raises(error):
            self.run(*words)

    def serve(self, **changed: Any) -> None:
        """The operator stops a broker and starts another at its address."""
        self.stack.close()
        fields = self.site.fields | {"port": self.port, "state": "state"} | changed
        for name in ("consortium", "policy", "state", "succeeds"):
            if fields.get(name) is not None:
                fields[name] = Path(fields[name])
        assert self.stack.enter_context(running(BrokerConfig(**fields))) == self.url

    def follow(self, section: str) -> None:
        """Do what a section of the guide says."""
        for words in commands(section):
            if words[:2] == ["broker", "deployment"]:
                self.run(*words)
                given = dict(zip(words[2::2], words[3::2], strict=True))
                another = "--root-secret" in given
                self.serve(
                    consortium=given["--consortium"],
                    succeeds=given["--succeeds"],
                    state=f"state-of-{given['--succeeds']}",
                    root_secret="file:second.secret" if another else "file:root.secret",
                )
            elif words[0] == "lock":
                given = dict(zip(words[2::2], words[3::2], strict=True))
                self.lock(given["--consortium"], given["--broker"], given["--out"])
            elif words[:2] == ["broker", "pin"]:
                given = dict(zip(words[2::2], words[3::2], strict=True))
                self.pin(given["--policy"], given["--out"])
            else:
                self.run(*words)

    def pin(self, policy: str, out: str) -> None:
        """As the guide says, of the broker that is here and its deployment."""
        self.run(
            "broker", "pin", "--url", self.url, "--broker-deployment", "compose.json",
            "--policy", policy, "--out", out,
        )  # fmt: skip

    def lock(self, consortium: str, broker: str, out: str) -> None:
        Path(out).mkdir(exist_ok=True)
        brokers = (load_pin(Path(broker)).broker_id,)
        locked = lock_changed(Consortium.load(Path(consortium)).consortium_id, brokers)
        (Path(out) / "app-compose.json").write_bytes(locked.compose_bytes)

    def witness(self, owner: str, consortium: str, broker: str = "broker.yaml") -> Any:
        return self.run(
            "log", "witness", "--broker", broker, "--consortium", consortium,
            "--identity", f"{owner}.identity.json",
        )  # fmt: skip


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[People]:
    """Three hospitals with the guide's consortium, a broker, and data that one of them sealed."""
    monkeypatch.chdir(tmp_path)
    with broker_site(tmp_path) as site:
        made = People(site, port=free_port())
        (tmp_path / "consortium.json").unlink()
        for name in OWNERS:
            Path(f"{name}.public.json").write_bytes(identity(name).public.to_bytes())
        site.fields |= {"root_secret": "file:root.secret"}
        with made.stack:
            made.follow("")
            made.serve()
            made.pin("policy.yaml", "broker.yaml")
            made.lock("consortium.json", "broker.yaml", "before")
            Path("biopsies.jsonl").write_text(RECORDS)
            made.run(
                "seal", "biopsies.jsonl", "--name", "biopsies", "--out", "biopsies.sealed",
                "--identity", f"{C}.identity.json", "--broker", "broker.yaml",
                "--deployment", "before/app-compose.json",
            )  # fmt: skip
            for name in (A, B):
                made.witness(name, "consortium.json")
            yield made


def test_an_owner_gets_other_keys_and_the_data_stays(people: People) -> None:
    root = load_dataset_manifest(Path("biopsies.sealed"), identity(C).public).root
    people.follow("An owner's keys are lost, stolen or due to be changed")
    successor = Consortium.load(Path("successor.json"))
    mine = Identity.load(Path(f"new-keys/{C}.identity.json"))
    assert successor.owner(C) == mine.public != identity(C).public

    # Memories followed, and go no way back.
    assert people.witness(B, "successor.json")["before"] is not None
    people.refused(
        AnswerInvalid, "log", "witness", "--broker", "broker.yaml",
        "--consortium", "consortium.json", "--identity", f"{A}.identity.json",
    )  # fmt: skip

    # The dataset is the new keys', and only theirs; its ciphertext is what it was.
    manifest = load_dataset_manifest(Path("biopsies.sealed"), mine.public)
    assert manifest.root == root
    people.run(
        "open",
        "biopsies.sealed",
        "--identity",
        f"new-keys/{C}.identity.json",
        "--out",
        "check.jsonl",
    )
    assert [json.loads(line) for line in Path("check.jsonl").read_text().splitlines()] == [
        json.loads(line) for line in RECORDS.splitlines()
    ]
    dataset_id, stanzas = read_stanzas(Path("biopsies.sealed"))
    with pytest.raises(NoStanza):
        find_stanza(stanzas, kind="owner", recipient=identity(C).public.owner_id)

    # A guest of the new recipe gets the same data key from the broker's root.
    at = {"app_id": manifest.app_id, "compose_hash": manifest.compose_hash}
    broker = load_pin(Path("broker.yaml")).broker_id
    binding = BrokerBinding(**at, owner_id=mine.public.owner_id, broker_id=broker)
    root_key = root_secret("file:root.secret", create=False, random=os.urandom)
    private = recipe_key(root_key, **at, owner_id=mine.public.owner_id)
    opened = unwrap_for_recipe(
        find_stanza(stanzas, kind="recipe", recipient=binding.recipient),
        dataset_id=dataset_id,
        binding=binding,
        private=private,
    )
    own = unwrap_for_owner(
        find_stanza(stanzas, kind="owner", recipient=mine.public.owner_id),
        dataset_id=dataset_id,
        owner_id=mine.public.owner_id,
        private=mine.sealing,
    )
    assert opened.reveal() == own.reveal()

    told = people.run(
        "approvals", "status", "--deployment", "locked/app-compose.json", "--broker", "broker.yaml",
        "--consortium", "successor.json",
    )  # fmt: skip
    assert told["approved_by"] == [C]
    old = [
        "approve", "--deployment", "locked/app-compose.json", "--identity", f"{C}.identity.json",
        "--consortium", "successor.json", "--broker", "broker.yaml", "--memory", "other.json",
    ]  # fmt: skip
    people.refused(ApprovalUnknown, *old)


def test_the_old_broker_is_at_its_end_and_says_so(people: People) -> None:
    section = commands("An owner's keys are lost, stolen or due to be changed")
    for words in section[: next(i for i, words in enumerate(section) if words[0] == "broker")]:
        people.run(*words)
    people.refused(
        ConsortiumMismatch, "approve", "--deployment", "before/app-compose.json",
        "--identity", f"{C}.identity.json", "--broker", "broker.yaml",
    )  # fmt: skip
    people.run(
        "revoke", "--deployment", "before/app-compose.json", "--identity", f"{C}.identity.json",
        "--broker", "broker.yaml",
    )  # fmt: skip


def test_one_signature_too_few_changes_nothing(people: People) -> None:
    section = commands("An owner's keys are lost, stolen or due to be changed")
    for words in section[:2]:
        people.run(*words)
    people.refused(ApprovalsMissing, "consortium", "verify", "succession.json")
    people.refused(ApprovalsMissing, "consortium", "succeed", "succession.json")
    assert not Path("successor.json").exists()
    with pytest.raises(ApprovalsMissing):
        people.serve(consortium="consortium.json", succeeds="succession.json", state="next-state")


def test_a_broker_with_another_root_is_followed_when_the_owners_say_so(people: People) -> None:
    people.follow("A broker's root secret is lost")
    assert Path("second.secret").read_bytes() != Path("root.secret").read_bytes()
    second = Consortium.load(Path("second-consortium.json"))
    assert second.name == "three-hospitals-2"
    assert people.witness(B, "second-consortium.json", "second-broker.yaml")["size"] >= 1
    people.refused(  # it is another broker than the one that this file names
        BrokerMismatch, "log", "witness", "--broker", "broker.yaml",
        "--consortium", "second-consortium.json", "--identity", f"{C}.identity.json",
        "--memory", "first-look.json",
    )  # fmt: skip


def test_a_memory_follows_over_a_step_that_was_missed(people: People) -> None:
    people.follow("An owner's keys are lost, stolen or due to be changed")
    identities = ["--identity", f"{A}.identity.json", "--consortium", "successor.json"]
    people.run("consortium", "propose", "--revoke", "2", "--out", "third.json", *identities)
    people.run(
        "consortium", "sign", "third.json", "--consortium", "successor.json",
        "--identity", f"{B}.identity.json",
    )  # fmt: skip
    people.run(
        "consortium", "succeed", "third.json", "--consortium", "successor.json",
        "--out", "third-consortium.json",
    )  # fmt: skip
    people.serve(consortium="third-consortium.json", succeeds="third.json", state="third")
    mine = [
        "--broker", "broker.yaml", "--consortium", "third-consortium.json",
        "--identity", f"{B}.identity.json",
    ]  # fmt: skip
    people.refused(SignatureInvalid, "log", "witness", *mine)
    people.refused(SignatureInvalid, "consortium", "follow", "third.json", *mine)
    people.run("consortium", "follow", "succession.json", *mine)
    assert people.run("log", "witness", *mine)["before"] >= 1


def test_a_successor_that_shows_no_succession_is_followed_by_nobody(people: People) -> None:
    for words in commands("A broker's root secret is lost"):
        if words[0] == "broker":
            break
        people.run(*words)
    people.serve(
        consortium="second-consortium.json", state="second-state", root_secret="file:second.secret"
    )
    people.pin("policy.yaml", "second-broker.yaml")
    words = [
        "log", "witness", "--broker", "second-broker.yaml",
        "--consortium", "second-consortium.json", "--identity", f"{A}.identity.json",
    ]  # fmt: skip
    people.refused(SignatureInvalid, *words)
    broker = load_pin(Path("second-broker.yaml")).broker_id
    with BrokerClient(people.url, signer=identity(A).signer, broker=broker) as client:
        file = SuccessionFile.load(Path("second.json"))
        with pytest.raises(ConsortiumMismatch):  # of its predecessor, not its own
            client.hand_in("succession", file.envelope)
    people.refused(SignatureInvalid, *words)


def test_a_broker_from_an_old_backup_is_refused_until_a_successor_begins(people: People) -> None:
    people.stack.close()
    shutil.copytree("state", "backup")
    people.serve()
    approve = [
        "approve", "--deployment", "before/app-compose.json", "--broker", "broker.yaml",
        "--identity", f"{B}.identity.json", "--unpinned",
    ]  # fmt: skip
    people.run(*approve)
    remembered = people.witness(A, "consortium.json")["size"]
    people.serve(state="backup")
    look = ["log", "witness", "--broker", "broker.yaml", "--identity", f"{A}.identity.json"]
    people.refused(LedgerInconsistent, *look)
    people.refused(LedgerInconsistent, *approve)
    assert list(Path().glob(f"{A}.identity.json.ledger-*.evidence-*.json"))
    people.follow("A broker's root secret is lost")
    seen = people.witness(B, "second-consortium.json", "second-broker.yaml")["size"]
    assert seen < remembered


def test_a_proposal_about_another_history_is_not_signed(people: People) -> None:
    """The proposer saw another ledger than the one the signer remembers."""
    propose, sign = commands("An owner's keys are lost, stolen or due to be changed")[1:3]
    people.run("keygen", C, "--out", "new-keys")
    people.serve(state="forked")
    people.run(
        "approve", "--deployment", "before/app-compose.json", "--identity", f"{C}.identity.json",
        "--broker", "broker.yaml", "--memory", "of-c.json", "--unpinned",
    )  # fmt: skip
    people.run(*propose, "--memory", "elsewhere.json")
    people.serve()
    people.refused(LedgerInconsistent, *sign)


def test_too_few_owners_begin_anew(people: People) -> None:
    people.follow("Too few owners are left")
    two = Consortium.load(Path("two.json"))
    assert [owner.name for owner in two.owners] == [A, B]
    people.serve(consortium="two.json", state="anew")
    people.refused(
        SignatureInvalid, "log", "witness", "--broker", "broker.yaml",
        "--consortium", "two.json", "--identity", f"{A}.identity.json",
    )  # fmt: skip
    people.run(
        "log", "witness", "--broker", "broker.yaml", "--consortium", "two.json",
        "--identity", f"{A}.identity.json", "--memory", "anew.json",
    )  # fmt: skip
