"""A server of a cut run that died goes on from its newest sealed state, and from no other."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from channel_world import talking
from collecting import COLLECTING
from polling import wait_until
from variants import variants
from world import digest

from sealtrain.consortium.consents import SignedConsent
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import RunMismatch
from sealtrain.guest.journal import Journal
from sealtrain.keys.derive import joint_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.runlog import RunLog
from sealtrain.training.errors import PeerUnreachable
from sealtrain.training.run import Checkpoints, Inputs, Reporting, train
from sealtrain_together.cut.messages import (
    Ask,
    BeginCut,
    NotedState,
    OwnerJoined,
    receive_message,
    send_message,
)
from sealtrain_together.cut.states import (
    STATE_PURPOSE,
    Note,
    SealedCutState,
    ServerStates,
    owner_share,
    require_agreement,
)

if not COLLECTING:
    from cut_world import PARTIES, RUN_ID, TARGET, Site, cut_recipe, site

    from sealtrain_together.cut.learning import Learning

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]
if not COLLECTING:
    A, B = PARTIES
STEPS = 12
EVERY = 2


class Killed(Exception):
    """The server dies here."""


def recipe_of(phase: str = "classify", **changed: Any) -> Any:
    return cut_recipe(phase, trainer={"max_steps": STEPS, "save_steps": EVERY} | changed)


def served(
    at: Site,
    states: ServerStates,
    consents: dict[str, SignedConsent],
    *,
    dies_at: int | None = None,
    told_at_last: bool = True,
) -> dict[str, bytes]:
    """Train as ``cut.guest.serve`` does, until the end or a death after a checkpoint."""
    learning = Learning(at.recipe, Path())
    there = at.clients.wait_for_all(within=60)
    key = joint_key(
        at.clients.shares(), compose_hash=TARGET.compose_hash, run_id=RUN_ID, purpose=STATE_PURPOSE
    )
    continued = states.open(key)
    journal = Journal(log=RunLog(RUN_ID), started_at="2026-01-01T00:00:00Z")
    if continued is None:
        consents |= there
    else:
        at.clients.go_on(continued.arrived, consents)

    def sealed(ref: Any) -> None:
        states.seal(ref, at.clients.snapshot())(journal, 1.0)
        if ref.counter != dies_at or told_at_last:
            at.clients.tell(SealedCutState.of(ref))
        if ref.counter == dies_at:
            raise Killed

    return train(
        at.recipe,
        run_id=RUN_ID,
        inputs=Inputs(base_dir=Path(), sources=at.clients.sources()),
        checkpoints=Checkpoints(
            store=states.store,
            on_checkpoint=sealed,
            resume=None if continued is None else continued.checkpoint,
        ),
        reporting=Reporting(),
        phase=learning.train,
    ).files


def played(  # a moment of a run
    recipe: Any,
    out: Path,
    notes: dict[str, Note],
    consents: dict[str, SignedConsent],
    *,
    dies_at: int | None = None,
    told_at_last: bool = True,
    wait: float = 60,
    **changed: Any,
) -> dict[str, bytes]:
    """One life of a server in a folder, with clients that are started anew."""
    states = ServerStates(out, RUN_ID)
    with site(recipe, sealed=states.newest, kept_bytes=0) as at:
        values = {"kept_bytes": 0} | changed
        at.joining(*(at.client(name, note=notes[name], **values) for name in PARTIES))
        at.clients.wait_for_all(within=wait)
        return served(at, states, consents, dies_at=dies_at, told_at_last=told_at_last)


def notes_in(folder: Path) -> dict[str, Note]:
    """What owners find in their folders when they are started again."""
    return {name: Note.load(folder / name) for name in PARTIES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Files of uninterrupted runs, by phase."""
    made = {}
    for phase in ("classify", "sft"):
        folder = tmp_path_factory.mktemp(phase)
        out = folder / "server"
        out.mkdir()
        made[phase] = played(recipe_of(phase), out, notes_in(folder), {})
    return made


@pytest.mark.claim("C263")
@pytest.mark.parametrize(
    ("phase", "told_at_last"),
    variants(product(["classify", "sft"], [True, False]), each_time=[("classify", True)]),
)
def test_a_server_and_its_clients_that_died_end_in_the_same_bits(
    tmp_path: Path, whole: dict[str, dict[str, bytes]], phase: str, told_at_last: bool
) -> None:
    """Killed after the second and the fourth state, before or after the owners noted it."""
    out, consents = tmp_path / "server", dict[str, SignedConsent]()
    out.mkdir()
    for dies_at in (2, 4):
        with pytest.raises(Killed):
            played(
                recipe_of(phase), out, notes_in(tmp_path), consents,
                dies_at=dies_at, told_at_last=told_at_last,
            )  # fmt: skip
        known = notes_in(tmp_path)[A].sealed
        assert known is not None
        assert known.counter == (dies_at if told_at_last else dies_at - 1)
    files = played(recipe_of(phase), out, notes_in(tmp_path), consents)
    assert files.keys() == whole[phase].keys()
    assert all(files[name] == whole[phase][name] for name in files)


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, SignedConsent]]:
    """A run that died after its third state, with a copy of all folders after the first."""
    folder = tmp_path_factory.mktemp("dead")
    (folder / "now" / "server").mkdir(parents=True)
    consents: dict[str, SignedConsent] = {}
    for dies_at in (1, 3):
        with pytest.raises(Killed):
            played(
                recipe_of(), folder / "now" / "server", notes_in(folder / "now"), consents,
                dies_at=dies_at,
            )  # fmt: skip
        if dies_at == 1:
            shutil.copytree(folder / "now", folder / "before")
    return folder, consents


def mixed(dead: tuple[Path, Any], where: Path, **sides: str) -> Path:
    """A world in which each side's folder is of one of the two moments."""
    for side in ("server", *PARTIES):
        moment = sides.get(side.replace("-", "_"), "now")
        shutil.copytree(dead[0] / moment / side, where / side)
    return where


@pytest.mark.claim("C264")
@pytest.mark.parametrize(
    "sides",
    [
        {"server": "before"},
        {"hospital_a": "before"},
        {"hospital_b": "before"},
        {"hospital_a": "before", "hospital_b": "before"},
        {"server": "before", "hospital_a": "before"},
    ],
)
def test_an_older_state_on_some_sides_only_is_refused(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]], sides: dict[str, str]
) -> None:
    world = mixed(dead, tmp_path / "world", **sides)
    sent: list[int] = []
    with pytest.raises(CheckpointRefused) as refused:
        played(
            recipe_of(), world / "server", notes_in(world), dict(dead[1]), wait=30,
            on_sent=sent.append,
        )  # fmt: skip
    assert refused.value.owner in PARTIES
    assert not sent


@pytest.mark.claim("C264")
def test_states_that_were_deleted_are_missed(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]]
) -> None:
    world = mixed(dead, tmp_path / "world")
    shutil.rmtree(world / "server")
    (world / "server").mkdir()
    with pytest.raises(CheckpointRefused):
        played(recipe_of(), world / "server", notes_in(world), {}, wait=30)


@pytest.mark.claim("C264")
def test_an_owner_gives_a_server_that_was_put_back_no_share_and_no_consent(
    dead: tuple[Path, dict[str, SignedConsent]],
) -> None:
    """It refuses by itself, whatever the server makes of what it knows."""
    older = Note.load(dead[0] / "before" / A)
    recipe = recipe_of()
    with site(recipe) as at, talking() as (mine, server):
        client = at.client(A, note=Note.load(dead[0] / "now" / A), reading=None)
        client.note.path = None
        send_message(server, BeginCut(run_id=RUN_ID, sealed=older.sealed, **at.target.to_dict()))
        with pytest.raises(CheckpointRefused):
            client.serve(mine)
        mine.close()
        assert receive_message(server, NotedState).sealed == client.note.sealed
        assert server.receive(max_bytes=1 << 20) is None
    assert client.sent == 0


@pytest.mark.claim("C264")
def test_a_state_is_noted_on_disk_before_the_server_hears_of_it(tmp_path: Path) -> None:
    state = SealedCutState(counter=1, step=2, digest=digest("one"))
    with site(recipe_of()) as at, talking() as (mine, server):
        client = at.client(A, note=Note.load(tmp_path), reading=None)
        thread = threading.Thread(target=_until_lost, args=(client, mine), daemon=True)
        thread.start()
        send_message(server, BeginCut(run_id=RUN_ID, **at.target.to_dict()))
        receive_message(server, NotedState)
        receive_message(server, OwnerJoined)
        send_message(server, Ask(kind="sealed", sealed=state))
        assert receive_message(server, NotedState).sealed == state
        assert Note.load(tmp_path).sealed == state
        skipped = SealedCutState(counter=3, step=6, digest=digest("three"), previous=digest("two"))
        send_message(server, Ask(kind="sealed", sealed=skipped))
        thread.join(30)
    assert not thread.is_alive()
    assert Note.load(tmp_path).sealed == state


@pytest.mark.claim("C264")
def test_a_note_is_of_one_run(tmp_path: Path) -> None:
    Note.load(tmp_path).keep("77" * 16, None)
    with site(recipe_of()) as at, talking() as (mine, server):
        client = at.client(A, note=Note.load(tmp_path), reading=None)
        send_message(server, BeginCut(run_id=RUN_ID, **at.target.to_dict()))
        with pytest.raises(RunMismatch):
            client.serve(mine)


def test_what_sides_may_know_of_each_other() -> None:
    first = SealedCutState(counter=1, step=2, digest=digest("1"))
    second = SealedCutState(counter=2, step=4, digest=digest("2"), previous=first.digest)
    third = SealedCutState(counter=3, step=6, digest=digest("3"), previous=second.digest)
    branch = second.model_copy(update={"digest": digest("2b")})
    for server, known in ((None, None), (first, None), (first, first), (third, second)):
        require_agreement(server, known, A)
    for server, known in (
        (None, first), (first, second), (third, first), (branch, second), (third, branch),
        (third.model_copy(update={"step": 3}), second),
    ):  # fmt: skip
        with pytest.raises(CheckpointRefused):
            require_agreement(server, known, A)


@pytest.mark.claim("C264")
def test_one_owner_or_another_run_opens_no_state(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]]
) -> None:
    def key(shares: dict[str, bytes], run_id: str = RUN_ID, code: str = TARGET.compose_hash) -> Any:
        return joint_key(shares, compose_hash=code, run_id=run_id, purpose=STATE_PURPOSE)

    world = mixed(dead, tmp_path / "world")
    with site(recipe_of()) as at:
        shares = {name: at.client(name).share(RUN_ID) for name in PARTIES}
    for other in (
        key({A: shares[A]}),
        key(shares | {B: bytes(32)}),
        key(shares, run_id="77" * 16),
        key(shares, code=digest("another deployment")),
    ):
        with pytest.raises(CheckpointRefused):
            ServerStates(world / "server", RUN_ID).open(other)
    assert ServerStates(world / "server", RUN_ID).open(key(shares)) is not None


@pytest.mark.claim("C264")
@pytest.mark.parametrize("part", ["checkpoints", "journal", "arrived"])
def test_an_altered_part_of_a_state_opens_nothing(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]], part: str
) -> None:
    """One bit of the newest file; a torn checkpoint counts as none, which owners refuse."""
    world = mixed(dead, tmp_path / "world")
    newest = max(world.joinpath("server", part).glob("*.sealed"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.raises(CheckpointRefused):
        played(recipe_of(), world / "server", notes_in(world), dict(dead[1]), wait=30)


@pytest.mark.claim("C263")
def test_what_an_owner_sent_before_stays_what_it_sent(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]]
) -> None:
    """A server that goes on forgets no digest: another front or other records are seen."""
    world = mixed(dead, tmp_path / "world")
    states = ServerStates(world / "server", RUN_ID)
    with site(recipe_of(), sealed=states.newest, kept_bytes=0) as at:
        honest = at.client(A).reading

        class Swapping:
            def rows(self, records: list[Any]) -> Any:
                return honest.rows(records[::-1])

        notes = notes_in(world)
        at.joining(at.client(A, note=notes[A], reading=Swapping()), at.client(B, note=notes[B]))
        at.clients.wait_for_all(within=60)
        with pytest.raises(DatasetMismatch):
            served(at, states, dict(dead[1]))


@pytest.mark.claim("C263")
def test_an_owner_with_other_data_does_not_go_on(
    tmp_path: Path, dead: tuple[Path, dict[str, SignedConsent]]
) -> None:
    world = mixed(dead, tmp_path / "world")
    states = ServerStates(world / "server", RUN_ID)
    consents = dict(dead[1])
    signed = consents[A]
    fewer = tuple(
        dataset.model_copy(update={"rows": dataset.rows - 1})
        for dataset in signed.document.datasets
    )
    consents[A] = replace(signed, document=signed.document.model_copy(update={"datasets": fewer}))
    with site(recipe_of(), sealed=states.newest) as at:
        notes = notes_in(world)
        at.joining(*(at.client(name, note=notes[name]) for name in PARTIES))
        at.clients.wait_for_all(within=60)
        with pytest.raises(DatasetMismatch):
            served(at, states, consents)


@pytest.mark.claim("C226")
def test_an_owner_that_stays_away_from_a_state_is_named(tmp_path: Path) -> None:
    with site(recipe_of(), patience=1.0) as at:
        with at.channel(A) as channel:
            thread = threading.Thread(target=_until_lost, args=(at.client(A), channel), daemon=True)
            thread.start()
            wait_until(lambda: A in at.clients.present, 30)
        with pytest.raises(PeerUnreachable) as gone:
            at.clients.tell(SealedCutState(counter=1, step=2, digest=digest("one")))
    assert gone.value.owner == A
    assert "sealed state 1" in str(gone.value.got)


def test_a_share_is_of_one_owner_run_and_deployment() -> None:
    keys = {digest("dataset", 16): DataKey(bytes(range(32)))}
    other = {digest("dataset", 16): DataKey(bytes(32))}
    values: dict[str, Any] = {"owner": A, "target": TARGET, "run_id": RUN_ID}
    shares = {
        owner_share(keys, **values),
        owner_share(other, **values),
        owner_share(keys, **values | {"owner": B}),
        owner_share(keys, **values | {"run_id": "77" * 16}),
        owner_share(keys, **values | {"target": replace(TARGET, compose_hash=digest("other"))}),
    }
    assert len(shares) == 5
    assert {len(share) for share in shares} == {32}
    assert owner_share(keys, **values) in shares


def _until_lost(client: Any, channel: Any) -> None:
    with suppress(Exception):
        client.serve(channel)
