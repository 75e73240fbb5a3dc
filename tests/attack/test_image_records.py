"""The page before an approval shows an image as verified by no owner who did not sign that."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from broker_site import BrokerSite, broker_site
from click.testing import Result
from container_world import ImageWorld, make_image_world, rewritten
from typer.testing import CliRunner
from world import OWNERS, RECIPE, identity

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.cli import app
from sealtrain.cli.review import page
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.verifications import PAYLOAD_TYPE
from sealtrain.errors import SealtrainError
from sealtrain.image.layout import read_image
from sealtrain.image.packages import keeps, measure_image
from sealtrain.keys.identity import Identity
from sealtrain.owner.imagerecords import image_records
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.recipe.lock import LockedRecipe, lock_recipe
from sealtrain.recipe.schema import load_recipe
from sealtrain.signing import dsse

pytestmark = [pytest.mark.long, pytest.mark.claim("C171")]

A, B = OWNERS[:2]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """An owner's desk with a broker, an image, and a recipe that names it."""

    site: BrokerSite
    broker: BrokerClient
    image: ImageWorld
    folder: Path
    locked: LockedRecipe

    @property
    def identity(self) -> Path:
        return self.folder / f"{A}.identity.json"

    @property
    def lock(self) -> Path:
        return self.folder / "recipe.lock.json"

    @property
    def own(self) -> Path:
        """Where the specification says that the owner's record lies."""
        return self.folder / f"{A}.image-{self.locked.recipe_hash[:16]}.json"

    @property
    def document(self) -> dict[str, JsonValue]:
        """What an honest record of the owner would say."""
        return {
            "version": 1,
            "consortium_id": self.site.consortium.consortium_id,
            "owner": A,
            "owner_id": identity(A).public.owner_id,
            "nonce": "ab" * 16,
            "signed_at": to_rfc3339(system_clock()),
            "recipe_hash": self.locked.recipe_hash,
            "image": read_image(self.image.layout, keeps).digest,
            "code": self.locked.lock.code_sha256,
        }

    def run(self, *words: str | Path) -> Result:
        return CliRunner().invoke(app, [*map(str, words), "--json"])

    def verify(self, *words: str | Path) -> Result:
        image = self.image
        return self.run("image", "verify", image.layout, "--source", image.source, *words)

    def approve(self, *words: str | Path) -> Result:
        return self.run(
            "approve", "--deployment", self.folder / "app-compose.json",
            "--identity", self.identity, "--broker", self.site.folder / "broker.yaml",
            "--consortium", self.site.folder / "consortium.json", "--unpinned", "--yes", *words,
        )  # fmt: skip

    def signed(self, signer: Identity, **changed: JsonValue) -> bytes:
        payload = canonical_json(self.document | changed)
        return dsse.sign(payload, PAYLOAD_TYPE, signer.signer).to_bytes()

    @property
    def decisions(self) -> list[Any]:
        return self.broker.list_decisions(self.locked.target, self.site.consortium)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_image_world(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerSite, BrokerClient]]:
    with broker_site(tmp_path_factory.mktemp("records")) as site, site.serving("state") as client:
        site.broker_file(client)
        yield site, client


@pytest.fixture
def desk(site: tuple[BrokerSite, BrokerClient], made: ImageWorld, tmp_path: Path) -> Desk:
    layout = tmp_path / "toy"
    shutil.copytree(made.layout, layout)
    hardware = {
        "platforms": ["dstack"],
        "tier": "processor",
        "image": f"registry.example/toy@{read_image(layout, keeps).digest}",
        "key_provider": "kms",
        "key_provider_id": "3059301306",
    }
    recipe = tmp_path / "recipe.yaml"
    changed = {"hardware": hardware, "description": tmp_path.name}
    recipe.write_text(yaml.safe_dump(RECIPE | changed))
    locked = lock_recipe(
        recipe,
        consortium_id=site[0].consortium.consortium_id,
        brokers=[site[0].pin.broker_id],
        installation=measure_image(read_image(layout, keeps), load_recipe(recipe)),
    )
    locked.write(tmp_path)
    identity(A).save(tmp_path / f"{A}.identity.json")
    world = ImageWorld(made.source, layout, made.cache)
    return Desk(site=site[0], broker=site[1], image=world, folder=tmp_path, locked=locked)


def code(result: Result) -> str:
    assert isinstance(result.exception, SealtrainError), result.output
    return result.exception.code


def image_line(desk: Desk, *others: Path) -> str:
    """What the page says of machines and image."""
    records = image_records(
        OwnerFiles(identity=desk.identity),
        desk.locked.lock,
        desk.site.consortium,
        others,
        now=system_clock(),
    )
    lines = page(desk.locked.lock, (), records)
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["runs", "on"])
    return " ".join(line.strip() for line in lines[at : at + 4])


def test_an_owner_who_verified_the_image_is_named_with_the_day(desk: Desk) -> None:
    assert A not in image_line(desk)
    answer = desk.verify("--lock", desk.lock, "--identity", desk.identity)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["record"] == str(desk.own)
    today = to_rfc3339(system_clock())[:10]
    assert f"{A} on {today}" in image_line(desk)
    approved = desk.approve()
    assert approved.exit_code == 0, approved.output
    told = json.loads(approved.stdout)["image_verified_by"]
    assert [(name, at[:10]) for name, at in told.items()] == [(A, today)]


def test_without_a_record_nobody_is_named(desk: Desk) -> None:
    assert desk.verify("--lock", desk.lock).exit_code == 0
    assert not desk.own.exists()
    approved = desk.approve()
    assert approved.exit_code == 0, approved.output
    assert json.loads(approved.stdout)["image_verified_by"] == {}
    assert not any(owner in image_line(desk) for owner in OWNERS)


def test_a_record_that_another_owner_sent_is_shown_as_that_owners(desk: Desk) -> None:
    sent, theirs = desk.folder / "sent.json", desk.folder / "theirs.identity.json"
    identity(B).save(theirs)
    answer = desk.verify("--lock", desk.lock, "--identity", theirs, "--out", sent)
    assert answer.exit_code == 0, answer.output
    line = image_line(desk, sent)
    assert f"{B} on " in line
    assert A not in line
    assert not any(owner in image_line(desk) for owner in OWNERS)  # unless it is named
    told = json.loads(desk.approve("--verified", sent).stdout)["image_verified_by"]
    assert list(told) == [B]


STRANGER = Identity.generate("stranger")


def _altered(desk: Desk) -> bytes:
    envelope = dsse.Envelope.from_bytes(desk.signed(identity(A), image="sha256:" + "5a" * 32))
    honest = dsse.Envelope.from_bytes(desk.signed(identity(A)))
    signatures = envelope.signatures
    return dsse.Envelope(
        payload=honest.payload, payload_type=PAYLOAD_TYPE, signatures=signatures
    ).to_bytes()


FORGED: dict[str, tuple[str, Callable[[Desk], bytes]]] = {
    "another recipe": (
        "image-refused",
        lambda desk: desk.signed(identity(A), recipe_hash="0c" * 32),
    ),
    "another image": (
        "image-refused",
        lambda desk: desk.signed(identity(A), image="sha256:" + "5a" * 32),
    ),
    "other code": ("image-refused", lambda desk: desk.signed(identity(A), code="dd" * 32)),
    "altered": ("signature-invalid", _altered),
    "a stranger's": ("approval-unknown", lambda desk: desk.signed(STRANGER)),
    "a stranger's, with its own name": (
        "approval-unknown",
        lambda desk: desk.signed(STRANGER, owner="stranger", owner_id=STRANGER.public.owner_id),
    ),
    "another owner's, in this one's name": (
        "dataset-mismatch",
        lambda desk: desk.signed(identity(B)),
    ),
    "another consortium's": (
        "approval-unknown",
        lambda desk: desk.signed(identity(A), consortium_id="c0" * 32),
    ),
    "of tomorrow": (
        "statement-invalid",
        lambda desk: desk.signed(identity(A), signed_at=to_rfc3339(system_clock() + 86_400)),
    ),
    "an approval of the owner": (
        "signature-invalid",
        lambda desk: dsse.sign(
            canonical_json(desk.document),
            "application/vnd.sealtrain.decision+json",
            identity(A).signer,
        ).to_bytes(),
    ),
    "unsigned": ("signature-invalid", lambda desk: canonical_json(desk.document)),
    "cut": ("signature-invalid", lambda desk: desk.signed(identity(A))[:-20]),
    "nothing": ("signature-invalid", lambda _: b""),
    "without end": ("limit-exceeded", lambda _: bytes(1 << 20)),
}


@pytest.mark.parametrize("place", ["beside the identity", "--verified"])
@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_record_refuses_the_approval(desk: Desk, forgery: str, place: str) -> None:
    refusal, forge = FORGED[forgery]
    sent = desk.own if place == "beside the identity" else desk.folder / "sent.json"
    sent.write_bytes(forge(desk))
    answer = desk.approve(*([] if sent == desk.own else ["--verified", sent]))
    assert code(answer) == refusal
    assert not desk.decisions


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "device", "dangling"])
def test_what_is_no_file_is_no_record(desk: Desk, kind: str) -> None:
    sent = desk.folder / "sent.json"
    make: dict[str, Callable[[], object]] = {
        "absent": lambda: None,
        "folder": sent.mkdir,
        "pipe": lambda: os.mkfifo(sent),
        "device": lambda: sent.symlink_to("/dev/zero"),
        "dangling": lambda: sent.symlink_to(desk.folder / "nothing"),
    }
    make[kind]()
    assert code(desk.approve("--verified", sent)) in {
        "data-invalid",
        "limit-exceeded",
        "signature-invalid",
    }
    if kind == "dangling":  # a record that was there is not taken for none
        desk.own.symlink_to(desk.folder / "nothing")
        assert code(desk.approve()) == "data-invalid"
    assert not desk.decisions


def test_a_record_says_nothing_about_the_next_recipe(
    desk: Desk, site: tuple[BrokerSite, BrokerClient]
) -> None:
    """An engineer swaps the recipe, and keeps the image."""
    assert desk.verify("--lock", desk.lock, "--identity", desk.identity).exit_code == 0
    recipe = desk.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "purpose: another one\n")
    measured = measure_image(read_image(desk.image.layout, keeps), load_recipe(recipe))
    again = lock_recipe(
        recipe,
        consortium_id=desk.site.consortium.consortium_id,
        brokers=[desk.site.pin.broker_id],
        installation=measured,
    )
    again.write(desk.folder, overwrite=True)
    approved = desk.approve()
    assert approved.exit_code == 0, approved.output
    assert json.loads(approved.stdout)["image_verified_by"] == {}
    assert code(desk.approve("--verified", desk.own)) == "image-refused"


def test_an_image_that_is_refused_gets_no_record(desk: Desk) -> None:
    rewritten(desk.image.layout, layers=lambda tars: [*tars[:2], bytes(10240)])
    answer = desk.verify("--lock", desk.lock, "--identity", desk.identity)
    assert code(answer) == "image-refused"
    assert not desk.own.exists()


def test_another_image_than_the_locks_gets_no_record(desk: Desk) -> None:
    """It is accounted for by the source, and is not the one that the recipe runs in."""
    rewritten(desk.image.layout, packed=True)  # another digest, and the same files
    assert desk.verify().exit_code == 0
    assert code(desk.verify("--lock", desk.lock, "--identity", desk.identity)) == "image-refused"
    assert not desk.own.exists()


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--identity", "IDENTITY"], "usage"),
        (["--lock", "LOCK", "--out", "OUT"], "usage"),
        (["--lock", "LOCK", "--identity", "IDENTITY", "--out", "LOCK"], "already-exists"),
        (["--lock", "LOCK", "--identity", "IDENTITY", "--out", "NOWHERE"], "usage"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_image_is_read(
    desk: Desk, words: list[str], refusal: str
) -> None:
    places = {
        "IDENTITY": desk.identity,
        "LOCK": desk.lock,
        "OUT": desk.folder / "out.json",
        "NOWHERE": desk.folder / "nowhere" / "out.json",
    }
    rewritten(desk.image.layout, layers=lambda tars: [*tars[:2], bytes(10240)])
    before = sorted(desk.folder.rglob("*"))
    assert code(desk.verify(*[places.get(word, word) for word in words])) == refusal
    assert sorted(desk.folder.rglob("*")) == before


def test_a_recipe_without_an_image_gets_no_record(desk: Desk) -> None:
    recipe = desk.folder / "recipe.yaml"
    changed = yaml.safe_load(recipe.read_text()) | {"hardware": RECIPE["hardware"]}
    recipe.write_text(yaml.safe_dump(changed))
    measured = measure_image(read_image(desk.image.layout, keeps), load_recipe(recipe))
    lock_recipe(
        recipe,
        consortium_id=desk.site.consortium.consortium_id,
        brokers=[desk.site.pin.broker_id],
        installation=measured,
    ).write(desk.folder, overwrite=True)
    assert code(desk.verify("--lock", desk.lock, "--identity", desk.identity)) == "usage"
    assert not list(desk.folder.glob("*.image-*"))
