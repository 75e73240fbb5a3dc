"""Exports say what was verified, stock tools read them, none is made of a refused manifest."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cyclonedx_schema import judge
from manifest_world import FILES, NOW, World, make_world
from world import OWNERS, RECIPE, identity

from sealtrain.errors import KeyFileInvalid, Refused
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.manifest.exports.cyclonedx import cyclonedx
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import ModelFacts, model_facts_of, plain
from sealtrain.manifest.exports.model_signing import (
    hash_opened,
    load_signing_key,
    model_signature,
)
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.opening import digest_opened
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.manifest.verify import Report, examine
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.schema import PHASES, load_recipe
from sealtrain.sealing.errors import NoStanza

pytestmark = pytest.mark.claim("C39")

READY = Path(__file__).resolve().parents[3] / "recipes"
SHARED = Path(os.environ.get("SEALTRAIN_SHARED", Path(__file__).resolve().parents[4] / "shared"))
HOSTILE = "<script>alert(1)</script> **bold** [link](javascript:x) | cell `code`"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run whose outputs are sealed to two of the owners, with an unkind description."""
    folder = tmp_path_factory.mktemp("exports")
    return make_world(folder, {**RECIPE, "description": HOSTILE}, sealed_to=OWNERS[:2])


def report_on(world: World, data: bytes | None = None) -> Report:
    return examine(data or world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)


@pytest.fixture(scope="module")
def account(world: World) -> ModelFacts:
    return model_facts_of(report_on(world))


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    folder = tmp_path / "opened"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("at", [40, 400, -400])
def test_a_tampered_manifest_is_not_exported(world: World, at: int) -> None:
    data = bytearray(world.manifest())
    data[at] ^= 1
    with pytest.raises(Refused):
        model_facts_of(report_on(world, bytes(data)))


def test_a_manifest_without_its_outputs_is_not_exported(world: World, tmp_path: Path) -> None:
    report = examine(world.manifest(), world.trust(), artefacts=tmp_path, now=NOW)
    with pytest.raises(SubjectMismatch):
        model_facts_of(report)


@pytest.mark.parametrize("export", [model_card, training_summary, cyclonedx])
def test_every_document_says_that_it_was_simulated_and_names_the_manifest(
    export: Any, account: ModelFacts
) -> None:
    text = export(account).decode()
    assert SIMULATED_MARKER in text
    assert account.digest in text
    assert "hospital" in text


@pytest.mark.parametrize("export", [model_card, training_summary])
def test_a_recipes_text_stays_text(export: Any, account: ModelFacts) -> None:
    text = export(account).decode()
    assert "<script>" not in text
    assert "](javascript" not in text


@pytest.mark.parametrize("text", [HOSTILE, "a | b", "# title", "![i](x)", "&lt;", "- item"])
def test_escaped_text_has_no_markup_left(text: str) -> None:
    escaped = plain(text)
    for sign in "<>[]()*`|#!&-":
        assert escaped.count(sign) == escaped.count("\\" + sign)


def test_the_card_has_a_header_that_hubs_read(account: ModelFacts) -> None:
    _, header, body = model_card(account).decode().split("---\n", 2)
    fields = yaml.safe_load(header)
    assert fields["library_name"] == "peft"
    assert fields["pipeline_tag"] == "text-generation"
    assert "simulated-not-attested" in fields["tags"]
    assert "| accuracy | 0.9204 |" in body
    assert "| hospital\\-a | biopsies | train |" in body


def test_the_summary_has_the_headings_and_is_a_draft(account: ModelFacts) -> None:
    text = training_summary(account).decode()
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    assert "DRAFT" in headings[0]
    for wanted in (
        "1. General information",
        "1.1 Provider identification",
        "1.2 Model identification",
        "1.3 Modalities, overall training data size and other characteristics",
        "2. List of data sources",
        "2.1 Publicly available datasets",
        "2.2 Private non-publicly available datasets obtained from third parties",
        "2.3 Data crawled and scraped from online sources",
        "2.4 User data",
        "2.5 Synthetic data",
        "2.6 Other sources of data",
        "3. Relevant data processing aspects",
    ):
        assert wanted in headings


@pytest.mark.parametrize("version", ["1.6", "1.7"])
def test_the_bill_of_materials_satisfies_the_published_schema(
    version: Any, account: ModelFacts
) -> None:
    document = json.loads(cyclonedx(account, version=version))
    validator = judge(version)
    assert [error.message for error in validator.iter_errors(document)] == []
    del document["components"][0]["name"]
    assert list(validator.iter_errors(document))  # the judge is awake


def test_the_bill_names_every_part_by_digest(account: ModelFacts, world: World) -> None:
    document = json.loads(cyclonedx(account))
    parts = {component["bom-ref"]: component for component in document["components"]}
    assert {f"dataset:{owner}/biopsies" for owner in OWNERS} < set(parts)
    assert "pkg:pypi/torch@2.9.0" in parts
    for subject in world.subjects:
        assert parts[f"output:{subject.name}"]["hashes"][0]["content"] == subject.sha256
    known = {document["metadata"]["component"]["bom-ref"], *parts}
    for dependency in document["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= known
    assert cyclonedx(account) == cyclonedx(account)


def locked(account: ModelFacts, path: Path) -> ModelFacts:
    """The account as if a ready recipe had run."""
    recipe = load_recipe(path)
    kind = recipe.model.kind
    pinned = {"kind": kind, "sha256": None if kind == "sealed" else "33" * 32}
    tokenizer = {"kind": "none", "sha256": None}
    further = {
        name: {"model": {"kind": "folder", "sha256": "44" * 32}, "tokenizer": tokenizer}
        for name in recipe.further_models
    }
    lock = Lock.model_validate(
        {
            **{name: getattr(account.lock, name) for name in Lock.model_fields},
            "recipe": recipe,
            "model": pinned,
            "models": further,
        }
    )
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in recipe.datasets}
    datasets = tuple(
        replace(account.datasets[0], owner=owner, name=name, role=role)
        for (owner, name), role in roles.items()
    )
    return replace(account, lock=lock, datasets=datasets)


@pytest.mark.parametrize("version", ["1.6", "1.7"])
def test_the_bill_of_every_ready_recipe_satisfies_the_schema(
    version: Any, account: ModelFacts
) -> None:
    validator = judge(version)
    phases = set()
    for path in sorted(READY.glob("*.yaml")):
        phases.add(load_recipe(path).phase)
        document = json.loads(cyclonedx(locked(account, path), version=version))
        assert [error.message for error in validator.iter_errors(document)] == [], path.name
    assert phases == set(PHASES), "every phase has a learning type"


@pytest.mark.parametrize(
    ("recipe", "approach", "models"),
    [
        ("cpt", "self-supervised", {"base-model"}),
        ("sft-lora", "supervised", {"base-model", "adapter"}),
        ("rlhf-ppo", "reinforcement-learning", {"base-model", "reward-model"}),
        ("dpo-lora", "supervised", {"base-model", "adapter"}),
        ("evaluate-sealed", None, {"base-model"}),
    ],
)
def test_the_bill_says_how_it_learned_and_from_which_models(
    recipe: str, approach: str | None, models: set[str], account: ModelFacts
) -> None:
    ran = locked(account, READY / f"{recipe}.yaml")
    document = json.loads(cyclonedx(ran))
    parameters = document["metadata"]["component"]["modelCard"]["modelParameters"]
    assert parameters.get("approach") == (None if approach is None else {"type": approach})
    parts = {
        component["bom-ref"]: component
        for component in document["components"]
        if component["type"] == "machine-learning-model"
    }
    assert models <= set(parts) <= models | {"adapter"}
    if "reward-model" in models:
        assert parts["reward-model"]["hashes"][0]["content"] == "44" * 32
    if recipe == "evaluate-sealed":
        told = {
            property_["name"]: property_["value"] for property_ in parts["base-model"]["properties"]
        }
        assert told["sealtrain:ciphertext-root"] == account.datasets[0].root
        assert "hashes" not in parts["base-model"]
        names = {component["bom-ref"] for component in document["components"]}
        assert "dataset:hospital-a/risk-model" not in names
    known = {"model", *(component["bom-ref"] for component in document["components"])}
    for dependency in document["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= known


CURVES = [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1]


def key_file(folder: Path, key: Any) -> tuple[Path, Path]:
    private, public = folder / "signing.pem", folder / "signing.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def stock(folder: Path, signature: Path, public: Path) -> subprocess.CompletedProcess[str]:
    """The CLI of OpenSSF model signing."""
    words = ["verify", "key", str(folder), "--signature", str(signature)]
    return subprocess.run(
        [sys.executable, "-m", "model_signing", *words, "--public_key", str(public)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("curve", CURVES[:1])
def test_the_stock_verifier_accepts_the_opened_model_and_no_other(
    curve: Any, world: World, account: ModelFacts, opened: Path, tmp_path: Path
) -> None:
    private, public = key_file(tmp_path, ec.generate_private_key(curve()))
    sealed = digest_opened(world.artefacts / "model", world.model, identity(OWNERS[0]))
    assert sealed == {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    signature = tmp_path / "model.sig"
    signature.write_bytes(
        model_signature(account.name, hash_opened(opened, sealed), load_signing_key(private))
    )
    accepted = stock(opened, signature, public)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    (opened / "config.json").write_bytes(b"{}")
    assert stock(opened, signature, public).returncode != 0


@pytest.mark.parametrize("curve", CURVES)
def test_the_signature_is_plain_ecdsa_over_the_envelope(curve: Any, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import hashes

    key = ec.generate_private_key(curve())
    bundle = json.loads(model_signature("m", {"a": "11" * 32, "b": "22" * 32}, key))
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    digest = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}[curve().key_size]()
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    key.public_key().verify(signature, message, ec.ECDSA(digest))
    statement = json.loads(payload)
    together = hashlib.sha256(bytes.fromhex("11" * 32 + "22" * 32)).hexdigest()
    assert statement["subject"] == [{"name": "m", "digest": {"sha256": together}}]


@pytest.mark.negative(64)
def test_a_folder_that_is_not_what_was_sealed_is_not_signed(
    world: World, account: ModelFacts, opened: Path
) -> None:
    sealed = digest_opened(world.artefacts / "model", world.model, identity(OWNERS[1]))
    (opened / "extra.py").write_text("import os")
    with pytest.raises(SubjectMismatch, check=carries(check="model", got="extra.py")):
        hash_opened(opened, sealed)
    (opened / "extra.py").unlink()
    (opened / "config.json").write_bytes(b"{}")
    with pytest.raises(SubjectMismatch, match=r"config\.json"):
        hash_opened(opened, sealed)
    (opened / "config.json").unlink()
    (opened / "config.json").symlink_to(opened / "model.safetensors")
    with pytest.raises(SubjectMismatch):
        hash_opened(opened, sealed)


def test_only_a_recipient_can_sign(world: World, account: ModelFacts) -> None:
    with pytest.raises(NoStanza):
        digest_opened(world.artefacts / "model", world.model, identity(OWNERS[2]))


def test_other_keys_are_refused(tmp_path: Path) -> None:
    private, public = key_file(tmp_path, ed25519.Ed25519PrivateKey.generate())
    for path in (private, public, tmp_path / "absent.pem"):
        with pytest.raises(KeyFileInvalid):
            load_signing_key(path)


def test_the_published_bundle_has_the_same_shape() -> None:
    folder = SHARED / "vectors/model-signing/scripts/tests/v1.1.0-elliptic-key"
    if not folder.is_dir():
        pytest.skip("no model-signing bundles beside the repository (SEALTRAIN_SHARED)")
    published = json.loads((folder / "model.sig").read_text("utf-8"))
    digests = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("signme-1", "signme-2")
    }
    key = ec.generate_private_key(ec.SECP384R1())
    ours = json.loads(model_signature(folder.name, digests, key))
    assert shape(ours) == shape(published)
    theirs = json.loads(base64.b64decode(published["dsseEnvelope"]["payload"]))
    made = json.loads(base64.b64decode(ours["dsseEnvelope"]["payload"]))
    assert made["subject"] == theirs["subject"]
    assert made["predicate"]["resources"] == theirs["predicate"]["resources"]


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(each_value) for name, each_value in sorted(value.items())}
    return (
        [shape(each_value) for each_value in value]
        if isinstance(value, list)
        else type(value).__name__
    )
