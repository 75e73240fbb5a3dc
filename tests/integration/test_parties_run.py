"""Parties and their lead against a real broker: own keys, own leases, one manifest."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from joint_site import JointSite, joint_site, typed
from run_logs import fields_of
from variants import variants
from world import OWNERS

from sealtrain.attest.errors import ComposeHashMismatch
from sealtrain.attest.guest import open_guest
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import TEMPORARY_SUFFIX
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.quorum import Quorum
from sealtrain.consortium.errors import ApprovalRevoked, DatasetMismatch
from sealtrain.errors import AlreadyExists, EgressRefused, LeaseStale, RunMismatch, UsageError
from sealtrain.guest.guest import Surroundings, run_secluded
from sealtrain.guest.guestrun import GuestRun
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.ledger.uses import Uses
from sealtrain.manifest.checks.collaboration import RULES
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.verify import verify_manifest
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.parties import party_run_id
from sealtrain.training.model_files import Trained
from sealtrain_rehearsal.simulator.server import running as simulated_guest
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.parties.joint import close_joint
from sealtrain_together.parties.lead import LeadRun
from sealtrain_together.parties.party import Participation, PartyReport, PartyRun
from sealtrain_together.travelling.guest.holder_guest import GIVEN, open_given_file
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds

pytestmark = [pytest.mark.long, pytest.mark.claim("C79")]

A, B, C = OWNERS


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JointSite]:
    with joint_site(tmp_path_factory.mktemp("parties")) as site:
        yield site


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No party trains here, so there are no rounds to look at."""
    monkeypatch.setitem(RULES, "federated", lambda _case: "nothing to hold")


def untold(_url: str, _error: Exception) -> None:
    """One broker: nothing is missed while others suffice."""


UNTOLD = Surroundings(on_failure=untold)


def begun(at: JointSite, name: str, run_id: str, out: str, *, resume: bool = False) -> PartyRun:
    part = Participation(party=name, run_id=run_id, resume=resume)
    return PartyRun.begin(at.settings(out), part, UNTOLD)


def texts(party: PartyRun) -> set[str]:
    rows = [row for source in party.sources for row in source.dataset.batch(0).to_pylist()]
    return {row["prompt"].split(" ")[0] for row in rows}


def trained(files: dict[str, bytes]) -> Trained:
    return Trained(
        files=files,
        steps=300,
        samples_seen=1,
        tokens=None,
        metrics={"loss": 0.5},
        environment={},
        accelerators=(),
        withheld={},
    )


@pytest.mark.claim("C614")
def test_parties_hold_their_own_data_and_one_manifest_says_so(at: JointSite) -> None:
    lead = LeadRun.begin(at.settings("lead"), UNTOLD)
    parties = [begun(at, name, lead.run_id, f"whole-{name}") for name in OWNERS]
    assert [texts(party) for party in parties] == [{name} for name in OWNERS]
    shares = {party.name: party.share("test-state") for party in parties}
    assert len(set(shares.values())) == 3
    key = lead.joint_key("test-state", shares)
    lead.record("federation.begun", fields_of("federation.begun", parties=list(OWNERS)))

    # One of them is interrupted, and goes on: same shares, and receipts of both its releases.
    parties[1].close()
    with pytest.raises(LeaseStale):
        parties[1].share("test-state")
    parties[1] = begun(at, B, lead.run_id, f"whole-{B}", resume=True)
    parties[1].renew()
    assert lead.joint_key("test-state", shares | {B: parties[1].share("test-state")}) == key

    until = system_clock()
    reports = [PartyReport.from_bytes(party.report(until).to_bytes()) for party in parties]
    assert [len(report.releases) for report in reports] == [1, 3, 1]
    trained_on = [
        dataset.manifest.dataset_id
        for party in parties
        for dataset in party.sealed_datasets
        if dataset.role == "train"
    ]
    counts = {
        dataset_id: said for report in reports for dataset_id, said in (report.counts or {}).items()
    }
    assert counts == dict.fromkeys(trained_on)  # the recipe's logs let no exact count out
    outcome = close_joint(lead, trained({"adapter.bin": b"weights"}), reports)
    for each_party in parties:
        each_party.close()

    data = outcome.manifest.read_bytes()
    found = verify_manifest(data, at.trust(), artefacts=outcome.manifest.parent, now=system_clock())
    together = found.predicate.collaboration
    assert together is not None
    assert [(party.name, party.run_id) for party in together.parties] == [
        (name, party_run_id(lead.run_id, name)) for name in OWNERS
    ]
    entries = found.predicate.run_log.entries
    assert [entry["fields"] for entry in entries if entry["event"] == "data.counted"] == [counts]
    assert "records-not-counted" not in {limit.id for limit in found.predicate.limits}
    _recorded_for_all(at, data, lead.run_id)


def _recorded_for_all(at: JointSite, manifest: bytes, run_id: str) -> None:
    """Each owner finds the model that its data went into."""
    entries = at.client.ledger_entries(0, 100)
    ids = {
        dataset["dataset_id"]
        for e in entries
        if e["kind"] == "release"
        for dataset in e["body"]["datasets"]
    }
    uses = Uses(ids)
    for index, entry in enumerate(entries):
        uses.entry(index, entry)
    (recorded,) = [entry["body"] for entry in entries if entry["kind"] == "manifest"]
    assert recorded["manifest_digest"] == sha256_hex(manifest)
    assert set(recorded["parties"]) == {party_run_id(run_id, name) for name in OWNERS}
    assert len(uses.list_uses()) == 4
    for use in uses.list_uses():
        assert [len(run.manifests) for run in use.runs] == [1], use.name


def test_the_broker_gives_no_guest_data_of_two_owners(at: JointSite) -> None:
    """As a guest would that asks for everybody's data: measured code of ours does not."""
    with pytest.raises(DatasetMismatch) as caught:
        DataGuest(
            at.settings("all"),
            Asking(run_id=os.urandom(16).hex(), resuming=False),
            UNTOLD,
            shared_out=True,
        ).prepare()
    assert (caught.value.check, caught.value.expected) == ("dataset owner", "datasets of one")


def test_one_guest_does_not_train_what_is_for_several(at: JointSite) -> None:
    with pytest.raises(UsageError, check=carries(check="collaboration", got="federated")):
        GuestRun.begin(at.settings("alone"), UNTOLD)


def test_a_stranger_is_no_party(at: JointSite) -> None:
    with pytest.raises(UsageError, check=carries(check="party", got="clinic-x")):
        begun(at, "clinic-x", os.urandom(16).hex(), "stranger")


def test_a_partys_folder_is_its_own(at: JointSite) -> None:
    run_id = os.urandom(16).hex()
    begun(at, A, run_id, "own").close()
    with pytest.raises(AlreadyExists):
        begun(at, A, run_id, "own")
    with pytest.raises(RunMismatch, check=carries(check="party")):
        begun(at, B, run_id, "own", resume=True)
    with pytest.raises(RunMismatch, check=carries(check="run")):
        begun(at, A, run_id, "elsewhere")
    moved = begun(at, A, run_id, "elsewhere", resume=True)
    assert len(moved.report(system_clock()).releases) == 1
    moved.close()


def killed(_obtained: Any) -> Any:
    os._exit(7)


def cut_off(_obtained: Any) -> Any:
    raise BrokerUnreachable("the answer did not arrive", got="a broker")


def told_to_end(_obtained: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", variants([killed, cut_off, told_to_end], each_time=[killed]))
@pytest.mark.parametrize("heard", [False, True])
def test_a_party_that_ended_while_it_asked_for_keys_goes_on(
    end: Callable[[Any], Any], heard: bool, at: JointSite
) -> None:
    run_id, out = os.urandom(16).hex(), f"{end.__name__}-{heard}"
    child = os.fork()
    if child == 0:
        obtain = Quorum.obtain

        def asked(quorum: Quorum, *given: Any, **named: Any) -> Any:
            return end(obtain(quorum, *given, **named) if heard else None)

        Quorum.obtain = asked  # type: ignore[method-assign]
        try:
            begun(at, B, run_id, out)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    left = at.settings(out).out
    assert any(left.iterdir()), "by which a ticket's guest knows that it is not the first"
    for told in (heard, True):  # with or without being told that it took part before
        with closing(begun(at, B, run_id, out, resume=told)) as party:
            assert party.resumed == told
            assert texts(party) == {B}
            assert len(party.report(system_clock()).releases) >= 1


def test_a_party_that_ended_with_half_a_file_goes_on(at: JointSite) -> None:
    out = at.settings("half").out
    out.mkdir()
    (out / f".party.json.0011{TEMPORARY_SUFFIX}").touch()
    with closing(begun(at, B, os.urandom(16).hex(), "half", resume=True)) as party:
        assert not party.resumed


def test_a_mark_of_a_run_that_never_began_holds_nobody_up(at: JointSite) -> None:
    first, second = (os.urandom(16).hex() for _ in range(2))
    begun(at, B, first, "mark").close()
    file = at.settings("mark").out / "party.json"
    kept = json.loads(file.read_bytes())
    file.write_bytes(canonical_json(kept | {"begun": None, "releases": []}))
    with closing(begun(at, B, second, "mark", resume=True)) as party:
        assert not party.resumed


def test_a_party_that_is_refused_leaves_nothing(at: JointSite) -> None:
    run_id = os.urandom(16).hex()
    begun(at, B, run_id, "first").close()
    for resume, out in ((False, "second"), (True, "third")):
        with pytest.raises(RunMismatch):
            begun(at, B, os.urandom(16).hex() if resume else run_id, out, resume=resume)
        assert not at.settings(out).out.exists()


def test_a_party_with_receipts_is_none_that_brokers_never_heard_of(at: JointSite) -> None:
    run_id, other = (os.urandom(16).hex() for _ in range(2))
    begun(at, B, run_id, "known").close()
    file = at.settings("known").out / "party.json"
    kept = file.read_bytes()
    file.write_bytes(kept.replace(run_id.encode(), other.encode()))
    unknown = carries(check="run", got=party_run_id(other, B))
    with pytest.raises(RunMismatch, check=unknown):
        begun(at, B, other, "known", resume=True)


@pytest.mark.claim("C94")
def test_a_party_goes_on_with_the_data_that_it_began_with(at: JointSite) -> None:
    """Its share would else repeat beside other rows: the noise of one of two equal runs."""
    run_id = os.urandom(16).hex()
    begun(at, A, run_id, "same").close()
    anew = at.folder / "sealed anew"
    anew.mkdir()
    for dataset in at.locked.lock.recipe.datasets:
        if dataset.owner == A:
            typed(
                "seal", at.folder / f"{A}.{dataset.name}.jsonl", "--name", dataset.name,
                "--identity", at.folder / f"{A}.identity.json",
                "--deployment", at.folder / "app-compose.json", "--broker", at.broker,
                "--out", anew / f"{A}.{dataset.name}.sealed",
            )  # fmt: skip
    changed = replace(at.settings("same"), data=(anew,))
    with pytest.raises(RunMismatch) as caught:
        PartyRun.begin(changed, Participation(party=A, run_id=run_id, resume=True), UNTOLD)
    assert caught.value.check == "run data"
    begun(at, A, run_id, "same", resume=True).close()


@pytest.mark.claim("C282")
def test_brokers_know_what_a_holder_gave_whatever_becomes_of_its_folder(at: JointSite) -> None:
    run_id = "e7" * 16

    def process(*, out: str = "gave", resume: bool = True) -> tuple[PartyRun, GivenFile]:
        party = begun(at, A, run_id, out, resume=resume)
        return party, open_given_file(party, every=4)

    def gives(*trips: int, resume: bool = True) -> None:
        party, file = process(resume=resume)
        with closing(party), closing(file), party.lease_keeper:
            counted = counts(party, file)
            file.begin()
            for trip in trips:
                counted.begins(run_id, trip, 10 * trip, 10 * trip + 10)

    def counts(party: PartyRun, file: GivenFile) -> GivenTrips:
        bounds = GivingBounds(max_bytes=1 << 20, timeout=1.0, patience=1.0)
        before = file.read(party.grant.latest_checkpoint if party.resumed else None)
        return GivenTrips(run_id, bounds, remember=file.keep, before=before)

    def refused(out: str = "gave") -> None:
        party, file = process(out=out)
        with closing(party), closing(file), pytest.raises(CheckpointRefused) as caught:
            counts(party, file)
        assert caught.value.check == "memory"

    gives(0, resume=False)
    path = at.settings("gave").out / GIVEN
    old = path.read_bytes()
    gives(1, 2)
    party, file = process()
    with closing(party), closing(file):
        assert counts(party, file).sizes == (10, 10, 10)
        anchored = party.grant.latest_checkpoint
        assert anchored is not None
        assert anchored.counter == 3  # two lines of the first process, and where the next began
        with pytest.raises(BrokerUnreachable) as caught:
            file.begin()  # nobody asks the brokers: the lease keeper does not run
        assert caught.value.check == "memory"
    there = path.read_bytes()
    path.write_bytes(old)
    refused()
    path.unlink()
    refused()
    refused("given-elsewhere")
    path.write_bytes(there)
    gives(3)


def test_the_lead_takes_no_report_but_a_partys_own(at: JointSite) -> None:
    lead = LeadRun.begin(at.settings("strict"), UNTOLD)
    mine, theirs = (begun(at, name, lead.run_id, f"strict-{name}") for name in (A, B))
    until = system_clock()
    report, other = mine.report(until), theirs.report(until)
    foreign = begun(at, C, os.urandom(16).hex(), "foreign")
    files = trained({"a": b"1"})
    lies: list[tuple[Any, dict[str, str]]] = [
        ([report, report], {"got": "2", "expected": "1"}),
        ([report, foreign.report(until)], {"got": foreign.report(until).run_id}),
        ([report, other.model_copy(update={"name": C})], {"got": other.run_id}),
        (
            [report, other.model_copy(update={"datasets": report.datasets})],
            {"got": A, "expected": B},
        ),
        (
            [report, other.model_copy(update={"role": "lead"})],
            {"got": "lead", "expected": "holder"},
        ),
    ]
    for reports, said in lies:
        with pytest.raises(ClaimContradicted, check=carries(check="parties", **said)):
            close_joint(lead, files, reports)
    assert not (at.folder / "strict" / "manifest.json").exists()
    for data in (b"{}", b" " + report.to_bytes(), b"[" * 100):
        with pytest.raises(ClaimContradicted):
            PartyReport.from_bytes(data)
    for entry in (mine, theirs, foreign):
        entry.close()
    lead.close()


def test_guests_of_another_deployment_are_not_accepted(at: JointSite, tmp_path: Path) -> None:
    """Genuine evidence of a guest of the same hardware that measured something else."""
    lead = LeadRun.begin(at.settings("chooses"), UNTOLD)
    binding = Binding("channel-initiator", {"any": "transcript"})
    assert AcceptGuest.of(lead)(ProveGuest.of(lead)(binding), binding).simulated
    other = tmp_path / "app-compose.json"
    measured = json.loads((at.folder / "app-compose.json").read_bytes())
    other.write_text(json.dumps(measured | {"name": "another"}))
    with simulated_guest(at.folder / "other.sock", other, at.folder / "simulator"):
        settings = at.settings("chooses")
        stranger = open_guest(
            "simulator", str(at.folder / "other.sock"), collateral=settings.collateral
        )
        with pytest.raises(ComposeHashMismatch):
            AcceptGuest.of(lead)(ProveGuest(stranger.evidence)(binding), binding)
    lead.close()


def test_a_party_reaches_its_peers_and_brokers_alone(at: JointSite) -> None:
    """Secluded as an ordinary run is: nothing else is reached, said or written."""
    party = begun(at, A, os.urandom(16).hex(), "secluded")
    with listening() as peer, listening() as elsewhere:
        peers = [f"tcp://127.0.0.1:{peer}"]

        def reach(port: int) -> None:
            print("a row")
            socket.create_connection(("127.0.0.1", port), timeout=5).close()

        run_secluded(party, lambda _terminal: reach(peer), peers=peers)
        run_secluded(party, lambda _terminal: party.renew(), peers=peers)
        with pytest.raises(EgressRefused):
            run_secluded(party, lambda _terminal: reach(elsewhere), peers=peers)
        stolen = at.folder / "stolen"
        with pytest.raises(EgressRefused):
            run_secluded(party, lambda _terminal: stolen.write_text("a row"), peers=peers)
    assert not stolen.exists()
    assert party.tally.counts["network.refused"] == 1
    assert party.tally.counts["printed"] == 2
    party.close()


@contextmanager
def listening() -> Iterator[int]:
    """A port of this machine that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_party_stops_when_an_owner_revokes(at: JointSite) -> None:
    party = begun(at, C, os.urandom(16).hex(), "revoked")
    party.lease_keeper.require()
    at.site.decide(at.client, B, "revoke")
    party.lease_keeper.tend()
    with pytest.raises(ApprovalRevoked):
        party.lease_keeper.require()
    with pytest.raises(LeaseStale):
        party.key.reveal()
    party.close()
