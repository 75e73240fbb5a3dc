"""A broker shows two histories, or an old one: witnesses and owners refuse it. Real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from carrying import carries
from typer.testing import CliRunner
from world import OWNERS, identity

from sealtrain.base.clock import system_clock
from sealtrain.base.encoding import from_base64
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.watch import cosign_newest, find_witnessed_head, observe, verify_recorded
from sealtrain.errors import LedgerInconsistent, SignatureInvalid
from sealtrain.ledger.witness import memory, verify_witnessed
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.note import SignedNote
from sealtrain.signing.tree_head import TreeHead, verify_tree_head

pytestmark = [pytest.mark.long, pytest.mark.claim("C13")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("site")) as made:
        yield made


def watch(
    site: BrokerSite, client: BrokerClient, owner: str, state: str, *, quorum: int = 1
) -> tuple[TreeHead, set[str]]:
    """What ``sealtrain log witness`` does."""
    with memory(site.folder / state) as kept, site.owner(client, owner) as client:
        now = system_clock()
        own = observe(client, kept, site.consortium, attest=site.key(client), now=now)
        cosign_newest(client, kept, owner=owner, signer=identity(owner).signer, now=now)
        found = find_witnessed_head(client, kept, site.consortium, quorum=quorum)
        return own, set(found.times)


def evidence(site: BrokerSite, state: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in site.folder.glob(f"{state}.evidence-*.json")]


def run(site: BrokerSite, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--consortium", str(site.folder / "consortium.json")])


@pytest.mark.negative(60)
def test_a_witness_that_saw_one_fork_refuses_the_other(site: BrokerSite) -> None:
    a, b, c = OWNERS
    with site.serving("trunk") as trunk:
        site.decide(trunk, a)
        shared, _ = watch(site, trunk, a, "a.json")
    site.copy("trunk", "fork")
    with site.broker("trunk") as left, site.broker("fork") as right:
        site.decide(left, b)
        site.decide(right, b, "revoke")
        seen, _ = watch(site, left, a, "a.json")
        assert seen.size == shared.size + 1
        # The same size, another root: each signed, and that alone is proof.
        with pytest.raises(LedgerInconsistent, check=carries(check="ledger consistency")):
            watch(site, right, a, "a.json")
        (told,) = evidence(site, "a.json")
        heads = [
            verify_tree_head(told[name], from_base64(told["public_key"]), origin=told["origin"])
            for name in ("older", "newer")
        ]
        assert heads[0].size == heads[1].size
        assert heads[0].root != heads[1].root
        # The fork grows past what the witness saw: no proof leads there.
        site.decide(right, c)
        site.decide(right, a, "revoke")
        with pytest.raises(LedgerInconsistent):
            watch(site, right, a, "a.json")
        # Who sees the fork only cannot know, but demands more witnesses than it has.
        forked, by = watch(site, right, c, "c.json")
        assert by == {c}
        with pytest.raises(
            SignatureInvalid, check=carries(check="witness quorum", got="0 (nobody)")
        ):
            watch(site, right, c, "c.json", quorum=2)
        # Nor can cosignatures be carried over.
        stolen = left.ledger_witnessed(1)
        assert stolen is not None
        with pytest.raises(LedgerInconsistent), site.owner(right, c) as mine:
            mine.submit_cosignature(stolen)
        # The trunk goes on.
        later, by = watch(site, left, b, "b.json", quorum=1)
        assert (later, by) == (seen, {a, b})
        assert watch(site, left, a, "a.json", quorum=2)[1] == {a, b}
    with memory(site.folder / "a.json") as kept:
        assert kept.head == seen
    assert forked.size > seen.size


@pytest.mark.negative(60)
def test_a_broker_restored_from_an_old_copy_gets_no_approval(site: BrokerSite) -> None:
    a, b, c = OWNERS
    state = ("--memory", str(site.folder / "owner.json"))
    me = ("--identity", str(site.folder / f"{c}.identity.json"))
    with site.serving("restored") as broker:
        file = str(site.broker_file(broker))
        port = int(broker.url.rpartition(":")[2])
        site.decide(broker, a)
        site.copy("restored", "backup")
        words = ("--deployment", str(site.deployment), *me, "--broker", file, *state, "--yes")
        approved = run(site, "approve", *words, "--unpinned", "--json")
        assert approved.exit_code == 0, approved.output
        assert json.loads(approved.stdout)["progress"] == 2
        audit = ("log", "audit", "--broker", file, *state)
        assert run(site, *audit).exit_code == 0
    site.copy("backup", "restored")
    with site.serving("restored", port) as broker:
        entries = broker.health().ledger_size
        refused = run(site, "approve", *words, "--unpinned")
        assert isinstance(refused.exception, LedgerInconsistent)
        assert refused.exception.check == "ledger size"
        assert broker.health().ledger_size == entries, "an approval reached the broker"
        assert evidence(site, "owner.json")
        assert run(site, *audit).exit_code == 3
        # It grows to the old size with another history.
        site.decide(broker, b)
        watched = run(site, "log", "witness", *me, "--broker", file, *state)
        assert isinstance(watched.exception, LedgerInconsistent)
        # Stopping is never refused, and then said.
        stopped = run(site, "revoke", *words)
        assert isinstance(stopped.exception, LedgerInconsistent)
        tally = broker.approvals_status(
            site.target, site.consortium, system_clock(), needs=site.needs
        )
        assert tally.revoked_by == (c,)


def test_a_broker_whose_ledger_alone_was_set_back_does_not_start(site: BrokerSite) -> None:
    a, b, _ = OWNERS
    with site.serving("alone") as broker:
        site.decide(broker, a)
        site.copy("alone", "older")
        site.decide(broker, b)
        watch(site, broker, a, "alone.json")
    for part in site.state("alone").glob("ledger.sqlite*"):
        part.unlink()
    for part in site.state("older").glob("ledger.sqlite*"):
        (site.state("alone") / part.name).write_bytes(part.read_bytes())
    with pytest.raises(LedgerInconsistent) as caught, site.serving("alone"):
        pass
    assert caught.value.check == "ledger size"


def test_what_is_asked_of_a_witness_over_the_network(site: BrokerSite) -> None:
    """The broker keeps what owners cosigned and nothing else; a client believes no answer."""
    a, b, c = OWNERS
    with site.serving("plain") as anybody, site.owner(anybody, a) as broker:
        assert broker.ledger_cosigned() == ()
        assert broker.ledger_witnessed(1) is None
        first, _ = watch(site, broker, a, "p.json")
        assert first.size == 0
        envelope = site.decision(a)
        index = broker.hand_in("approval", envelope)
        other = site.decide(broker, b)
        watch(site, broker, a, "p.json")
        with memory(site.folder / "p.json") as kept:
            verify_recorded(broker, kept, index, envelope.to_bytes())
            with pytest.raises(AnswerInvalid, check=carries(check="ledger entry")):
                verify_recorded(broker, kept, other, envelope.to_bytes())
            note = SignedNote.from_text(kept.note or "")
            key, origin = kept.public_key or b"", ledger_origin(site.consortium.consortium_id)
        # Nobody's, a stranger's, and an owner's of other bytes.
        stranger = identity("stranger")
        for text in (
            note.to_text(),
            _cosigned(note, "stranger", stranger.signer),
            _cosigned(note, c, stranger.signer),
        ):
            with pytest.raises(SignatureInvalid):
                broker.submit_cosignature(text)
        kept_before = broker.ledger_cosigned()
        assert [int(text.split("\n")[1]) for text in kept_before] == [0, 2]
        # A second cosignature of the same size by the same owner changes nothing.
        again = _cosigned(note, a, identity(a).signer, at=7)
        assert broker.submit_cosignature(again) == kept_before[1:]
        (both,) = broker.submit_cosignature(_cosigned(note, c, identity(c).signer))
        found = verify_witnessed(
            both, key, origin=origin, witnesses=site.consortium.owners, quorum=2
        )
        assert set(found.times) == {a, c}
        assert broker.ledger_witnessed(2) == both
        assert broker.ledger_witnessed(3) is None
        assert broker.ledger_cosigned(1, 5) == (both,)


def _cosigned(note: SignedNote, owner: str, signer: Any, *, at: int | None = None) -> str:
    from sealtrain.ledger.witness import cosign_tree_head

    line = cosign_tree_head(note.to_text(), owner, signer, at=at or system_clock())
    return note.with_signature(line).to_text()


def test_nothing_is_kept_beside_an_identity_but_the_memory(site: BrokerSite) -> None:
    with site.serving("files") as broker:
        file = str(site.broker_file(broker, "files.yaml"))
        me = site.folder / f"{OWNERS[0]}.identity.json"
        done = run(site, "log", "witness", "--identity", str(me), "--broker", file, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["witnessed"] == {"size": 0, "by": [OWNERS[0]]}
        audited = run(site, "log", "audit", "--broker", file, "--quorum", "1", "--json")
        assert audited.exit_code == 0, audited.output
        assert json.loads(audited.stdout)["holds"]
        lacking = run(site, "log", "audit", "--broker", file, "--quorum", "2")
        assert lacking.exit_code == 3
    (kept,) = me.parent.glob(f"{me.name}.ledger-*.json")
    assert Path(kept).stat().st_mode & 0o077 == 0


def test_a_dataset_is_registered_only_where_the_ledger_grew(site: BrokerSite) -> None:
    a = OWNERS[0]
    source = site.folder / "rows.jsonl"
    source.write_text('{"prompt": "one", "completion": "0"}\n' * 20)
    words = (
        *("seal", str(source), "--name", "biopsies", "--deployment", str(site.deployment)),
        *("--identity", str(site.folder / f"{a}.identity.json")),
        *("--memory", str(site.folder / "sealing.json"), "--json"),
    )
    with site.serving("sealing") as broker:
        site.copy("sealing", "sealing-older")
        file = str(site.broker_file(broker, "sealing.yaml"))
        port = int(broker.url.rpartition(":")[2])
        first = ("--broker", file, "--out", str(site.folder / "first.sealed"))
        sealed = CliRunner().invoke(app, [*words, *first])
        assert sealed.exit_code == 0, sealed.output
        assert [entry["kind"] for entry in broker.ledger_entries()] == ["dataset"]
    site.copy("sealing-older", "sealing")
    with site.serving("sealing", port) as broker:
        second = ("--broker", file, "--out", str(site.folder / "second.sealed"))
        refused = CliRunner().invoke(app, [*words, *second])
        assert isinstance(refused.exception, LedgerInconsistent)
        assert broker.health().ledger_size == 0


LIES: dict[str, tuple[str, Any, str]] = {
    "an entry changed": (
        "ledger_entries",
        lambda entries: [{**entries[0], "at": "2020-01-01T00:00:00Z"}, *entries[1:]],
        "one of the entries 0 to 1",
    ),
    "an entry left out": ("ledger_entries", lambda entries: entries[:1], "serves no such entry"),
    "no entries": ("ledger_entries", lambda _entries: [], "entry 0: entry missing"),
    "nonsense cosigned": ("ledger_cosigned", lambda _notes: ("x",), "does not verify"),
    "endless cosigned": ("ledger_cosigned", lambda _notes: ("a\n9\n",), "does not verify"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_audit_believes_no_answer(
    site: BrokerSite, monkeypatch: pytest.MonkeyPatch, lie: tuple[str, Any, str]
) -> None:
    method, change, told = lie
    honest = getattr(BrokerClient, method)

    def lying(client: BrokerClient, start: int = 0, limit: int = 100) -> Any:
        return change(honest(client, start, limit)) if start == 0 else []

    with site.serving("lies") as broker:
        file = str(site.broker_file(broker, "lies.yaml"))
        for owner in OWNERS[: 2 - broker.health().ledger_size]:
            site.decide(broker, owner)
        assert run(site, "log", "audit", "--broker", file).exit_code == 0
        monkeypatch.setattr(BrokerClient, method, lying)
        audited = run(site, "log", "audit", "--broker", file)
    assert audited.exit_code == 3, audited.output
    assert told in audited.stdout
