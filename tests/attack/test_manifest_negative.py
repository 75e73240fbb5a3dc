"""Manifests, case by case: what must end in refusal does, with its own code.

The numbers are those of the list that ``pytest -m negative`` shows. The attacker here may even hold
the guest's own key and let a genuine (simulated) guest quote the changed statement: everything
below is refused all the same.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from carrying import carries
from manifest_world import FINISHED, NOW, World, make_world
from run_logs import fields_of
from unread_recipe import UnreadRecipe
from world import OWNERS, RECIPE, signer, simulated_pki

from sealtrain.attest.errors import CollateralExpired, ReportDataMismatch
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import RecipeChanged, Refused, SealtrainError, SignatureInvalid
from sealtrain.manifest import form
from sealtrain.manifest.errors import ClaimContradicted, ManifestMalformed, SubjectMismatch
from sealtrain.manifest.files import examine_file, manifest_bytes, verify_file
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.recipe.adopted_document import EMPTY_SCRIPT, script_digest
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.signing import dsse, statement
from sealtrain.signing.errors import RunLogBroken
from sealtrain.signing.runlog import RunLog

pytestmark = pytest.mark.claim("C25")

DAY = 24 * 3600


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def honest(world: World) -> bytes:
    data = world.manifest()
    verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    return data


def refusal(
    world: World, data: bytes, error: type[SealtrainError], *, artefacts: Path | None = None
) -> SealtrainError:
    """The manifest is refused as told, with exit code 3, and nothing is returned."""
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(), artefacts=artefacts or world.artefacts, now=NOW)
    assert type(caught.value) is error
    assert caught.value.exit_code == 3
    return caught.value


def requoted(
    world: World,
    honest: bytes,
    change: Callable[[dict[str, Any]], None],
    *,
    head: str | None = None,
    spell: Callable[[Any], bytes] = canonical_json,
    kind: str = statement.PAYLOAD_TYPE,
) -> bytes:
    """Another statement, signed by the guest's key and quoted by the guest."""
    document = json.loads(form.read(honest).signed_statement.payload)
    change(document)
    payload = spell(document)
    committed = head or document.get("predicate", {}).get("run_log", {}).get("head", "00" * 32)
    binding = Binding("manifest", form.commitment(payload, world.guest_key.public, committed))
    evidence = world.evidence(binding)
    return form.write(
        dsse.sign(payload, kind, world.guest_key),
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        world.guest_key.public,
    )


def test_the_honest_statement_signed_and_quoted_again_is_accepted(
    world: World, honest: bytes
) -> None:
    """Every refusal below is for what was changed, not for the way it was made."""
    data = requoted(world, honest, lambda document: None)
    verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)


# --- 64: output files --------------------------------------------------------------------------


@pytest.mark.negative(64)
def test_each_byte_of_a_small_output_counts(world: World, honest: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(world.artefacts, folder)
    path = folder / "model/config.json.sealed"
    original = path.read_bytes()
    for at in range(0, len(original), 61):
        changed = bytearray(original)
        changed[at] ^= 1 << at % 8
        path.write_bytes(bytes(changed))
        refusal(world, honest, SubjectMismatch, artefacts=folder)


@pytest.mark.negative(64)
def test_a_link_out_of_the_folder_is_refused_whatever_it_leads_to(
    world: World, honest: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(world.artefacts, folder)
    output = folder / "model/model.safetensors.sealed"
    output.rename(tmp_path / "elsewhere")
    output.symlink_to(tmp_path / "elsewhere")
    refusal(world, honest, SubjectMismatch, artefacts=folder)


# --- 65: the envelope --------------------------------------------------------------------------


@pytest.mark.negative(65)
@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.in-toto+JSON",
        "application/vnd.in-toto+json ",
        "application/json",
        "",
        form.EVIDENCE_PAYLOAD_TYPE,
    ],
)
def test_a_statement_signed_under_another_payload_type_is_refused(
    world: World, honest: bytes, kind: str
) -> None:
    data = requoted(world, honest, lambda document: None, kind=kind)
    assert refusal_code(world, data) in ("manifest-malformed", "signature-invalid")


@pytest.mark.negative(65)
def test_the_payload_type_cannot_be_exchanged_afterwards(world: World, honest: bytes) -> None:
    document = json.loads(honest)
    document["bundle"]["dsseEnvelope"]["payloadType"] = "application/json"
    assert refusal_code(world, canonical_json(document)) in (
        "manifest-malformed",
        "signature-invalid",
    )


@pytest.mark.negative(65)
@pytest.mark.parametrize("own", ["absent", "broken", "second"])
def test_a_foreign_signature_beside_the_guests_does_not_count(
    world: World, honest: bytes, own: str
) -> None:
    """Of two signatures only the stranger's holds; or it holds, but is not alone."""
    document = json.loads(honest)
    envelope = document["bundle"]["dsseEnvelope"]
    payload = from_base64(envelope["payload"])
    stranger = dsse.sign(payload, envelope["payloadType"], signer("stranger")).to_dict()
    (mine,) = envelope["signatures"]
    if own == "broken":
        signature = bytearray(from_base64(mine["sig"]))
        signature[5] ^= 1
        mine = {**mine, "sig": to_base64(bytes(signature))}
    envelope["signatures"] = stranger["signatures"] + ([] if own == "absent" else [mine])
    refusal(world, canonical_json(document), SignatureInvalid)


def refusal_code(world: World, data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    return caught.value.code


# --- 66: whose quote ---------------------------------------------------------------------------


@pytest.mark.negative(66)
def test_a_quote_that_names_another_signer_is_refused(world: World, honest: bytes) -> None:
    read = form.read(honest)
    head = read.predicate.run_log.head
    named = form.commitment(read.signed_statement.payload, signer("another").public, head)
    evidence = world.evidence(Binding("manifest", named))
    data = form.write(
        read.signed_statement,
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        world.guest_key.public,
    )
    refusal(world, data, ReportDataMismatch)


@pytest.mark.negative(66)
def test_a_quote_made_for_a_release_does_not_carry_a_manifest(world: World, honest: bytes) -> None:
    read = form.read(honest)
    committed = form.commitment(
        read.signed_statement.payload, world.guest_key.public, read.predicate.run_log.head
    )
    for purpose in ("release", "renewal", "broker-keys"):
        evidence = world.evidence(Binding(purpose, committed))
        data = form.write(
            read.signed_statement,
            dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
            world.guest_key.public,
        )
        refusal(world, data, ReportDataMismatch)


# --- 67: the run log ---------------------------------------------------------------------------


def entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["predicate"]["run_log"]["entries"]
    assert len(found) > 2
    return found


def _removed(document: dict[str, Any]) -> None:
    del entries(document)[1]


def _beheaded(document: dict[str, Any]) -> None:
    del entries(document)[0]


def _cut(document: dict[str, Any]) -> None:
    del entries(document)[-1]


def _swapped(document: dict[str, Any]) -> None:
    log = entries(document)
    log[0], log[1] = log[1], log[0]


def _appended(document: dict[str, Any]) -> None:
    log = entries(document)
    log.append(copy.deepcopy(log[-1]))


def _grown(document: dict[str, Any]) -> None:
    """Properly chained, but the head stayed where it was."""
    run = document["predicate"]["run"]
    log = RunLog(run["run_id"])
    for entry in entries(document):
        log.append(entry["event"], entry["fields"], FINISHED)
    log.append("data.validated", fields_of("data.validated"), FINISHED)
    document["predicate"]["run_log"]["entries"] = log.entries


def _edited(document: dict[str, Any]) -> None:
    entries(document)[1]["fields"] = {"forged": True}


def _retimed(document: dict[str, Any]) -> None:
    first, second = entries(document)[:2]
    assert first["at"] != second["at"]
    second["at"] = first["at"]


def _other_head(document: dict[str, Any]) -> None:
    document["predicate"]["run_log"]["head"] = "ab" * 32


def _emptied(document: dict[str, Any]) -> None:
    document["predicate"]["run_log"]["entries"] = []


def _other_run(document: dict[str, Any]) -> None:
    log = RunLog("ab" * 16)
    for entry in entries(document):
        log.append(entry["event"], entry["fields"], FINISHED)
    document["predicate"]["run_log"] = {"head": log.head, "entries": log.entries}


def _worded(document: dict[str, Any]) -> None:
    """Properly chained and quoted, with words of a record as the name of an event."""
    run_log = document["predicate"]["run_log"]
    run_log["entries"][1]["event"] = "patient.4711-was-positive"
    run_id = document["predicate"]["run"]["run_id"]
    head = hashlib.sha256(b"sealtrain/run-log/v1:" + run_id.encode())
    for entry in run_log["entries"]:
        head = hashlib.sha256(head.digest() + canonical_json(entry))
    run_log["head"] = head.hexdigest()


LOGS = [
    _removed, _beheaded, _cut, _swapped, _appended, _grown, _edited, _retimed, _other_head,
    _emptied, _other_run, _worded,
]  # fmt: skip


@pytest.mark.negative(67)
@pytest.mark.parametrize("change", LOGS, ids=lambda change: change.__name__[1:])
def test_a_log_that_does_not_lead_to_its_head_is_refused(
    world: World, honest: bytes, change: Callable[[dict[str, Any]], None]
) -> None:
    data = requoted(world, honest, change)
    refusal(world, data, ManifestMalformed if change is _emptied else RunLogBroken)


@pytest.mark.negative(67)
def test_a_head_that_the_quote_does_not_name_is_refused(world: World, honest: bytes) -> None:
    """A consistent other history, but the guest quoted the head of the true one."""
    true_head = form.read(honest).predicate.run_log.head

    def rewritten(document: dict[str, Any]) -> None:
        log = RunLog(document["predicate"]["run"]["run_id"])
        for entry in entries(document)[:-1]:
            log.append(entry["event"], entry["fields"], FINISHED)
        document["predicate"]["run_log"] = {"head": log.head, "entries": log.entries}

    refusal(world, requoted(world, honest, rewritten, head=true_head), ReportDataMismatch)


# --- 68, 69: archived collateral and its time ----------------------------------------------------


def with_evidence(world: World, honest: bytes, change: Callable[[Evidence], Evidence]) -> bytes:
    """The honest manifest with changed evidence, signed again by the guest's key."""
    read = form.read(honest)
    evidence = change(Evidence.from_bytes(read.signed_evidence.payload))
    return form.write(
        read.signed_statement,
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        world.guest_key.public,
    )


@pytest.mark.negative(68)
@pytest.mark.parametrize("days", [-400, -31, 1, 30, 400])
def test_collateral_of_another_time_does_not_stand_in(
    world: World, honest: bytes, days: int
) -> None:
    """Authentic, of the same platform, even signed by the guest; only the time is another."""
    other = simulated_pki().collateral(FINISHED + days * DAY)
    data = with_evidence(world, honest, lambda evidence: evidence.with_collateral(other))
    refusal(world, data, CollateralExpired)


@pytest.mark.negative(68)
def test_archived_collateral_cannot_be_exchanged_without_the_guests_key(
    world: World, honest: bytes
) -> None:
    """Not even for collateral that would do."""
    read = form.read(honest)
    evidence = Evidence.from_bytes(read.signed_evidence.payload)
    other = evidence.with_collateral(simulated_pki().collateral(FINISHED - DAY))
    document = json.loads(honest)
    document["evidence"]["payload"] = to_base64(other.to_bytes())
    refusal(world, canonical_json(document), SignatureInvalid)


@pytest.mark.negative(69)
@pytest.mark.parametrize("days", [-400, -31, 2, 400])
def test_a_run_that_ends_outside_its_collateral_is_refused(world: World, days: int) -> None:
    data = world.manifest(quote=lambda binding: world.evidence(binding, at=FINISHED + days * DAY))
    refusal(world, data, CollateralExpired)


@pytest.mark.negative(69)
def test_a_manifest_verifies_years_later_at_its_own_time_only(world: World, honest: bytes) -> None:
    """The reader's clock does not decide whether collateral was good when the run ended."""
    later = NOW + 20 * 365 * DAY
    verified = verify_manifest(honest, world.trust(), artefacts=world.artefacts, now=later)
    assert verified.evidence.verified_at == FINISHED


# --- 70: types, keys, size -----------------------------------------------------------------------


@pytest.mark.negative(70)
@pytest.mark.parametrize("name", ["_type", "predicateType"])
@pytest.mark.parametrize(
    "value",
    [
        "https://in-toto.io/Statement/v0.1",
        "https://sealtrain.dev/attestations/run-manifest/v1",
        "https://sealtrain.dev/attestations/run-manifest/v3",
        "https://slsa.dev/provenance/v1",
        "",
        None,
        1,
    ],
)
def test_a_statement_of_an_unknown_type_is_refused(
    world: World, honest: bytes, name: str, value: Any
) -> None:
    data = requoted(world, honest, lambda document: document.update({name: value}))
    refusal(world, data, ManifestMalformed)


@pytest.mark.negative(70)
@pytest.mark.parametrize("name", ["_type", "predicate", "subject"])
def test_a_key_written_twice_in_the_payload_is_refused(
    world: World, honest: bytes, name: str
) -> None:
    """Signed and quoted: which of the two would count depends on the reader's library."""

    def twice(document: dict[str, Any]) -> bytes:
        value = canonical_json(document[name])
        key = canonical_json(name)
        return b"{" + key + b":" + value + b"," + canonical_json(document)[1:]

    refusal(world, requoted(world, honest, lambda document: None, spell=twice), ManifestMalformed)


@pytest.mark.negative(70)
def test_another_spelling_of_the_payload_is_refused(world: World, honest: bytes) -> None:
    for spell in (
        lambda document: json.dumps(document, indent=1).encode(),
        lambda document: canonical_json(document) + b"\n",
        lambda document: canonical_json(document).replace(b"simulated", b"\\u0073imulated", 1),
    ):
        data = requoted(world, honest, lambda document: None, spell=spell)
        refusal(world, data, ManifestMalformed)


@pytest.mark.negative(70)
def test_a_gigabyte_is_refused_without_being_read(world: World, tmp_path: Path) -> None:
    path, trust = tmp_path / "manifest.json", tmp_path / "trust.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    began = time.monotonic()
    for act in (verify_file, examine_file):
        with pytest.raises(ManifestMalformed, check=carries(check="form")):
            act(path, trust)
    tracemalloc.start()
    try:
        with pytest.raises(ManifestMalformed):
            manifest_bytes(path)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_MANIFEST_BYTES
    finally:
        tracemalloc.stop()
    big = b'{"bundle":"' + b"A" * (MAX_MANIFEST_BYTES) + b'"}'
    refusal(world, big, ManifestMalformed)
    assert time.monotonic() - began < 5


@pytest.mark.negative(70)
def test_a_payload_of_many_subjects_or_great_depth_is_refused_in_time(
    world: World, honest: bytes
) -> None:
    began = time.monotonic()

    def many(document: dict[str, Any]) -> None:
        digest = hashlib.sha256(b"").hexdigest()
        document["subject"] = [
            {"name": f"model/file-{number:04}.sealed", "digest": {"sha256": digest}}
            for number in range(5_000)
        ]

    def deep(document: dict[str, Any]) -> None:
        value: Any = 1
        for _ in range(60):
            value = [value]
        document["predicate"]["run"]["environment"] = value

    for change in (many, deep):
        refusal(world, requoted(world, honest, change), ManifestMalformed)
    assert time.monotonic() - began < 20


# --- What a reader must be told of -------------------------------------------------------------


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A consortium that lets data be used unasked, and a script of the engineer's."""
    folder = tmp_path_factory.mktemp("careless")
    (folder / "train.py").write_text("import sealtrain\n")
    hardware = {**RECIPE["hardware"], "launch_script": "ab" * 32}
    recipe = {**RECIPE, "scripts": ["train.py"], "hardware": hardware}
    made = make_world(folder, recipe, rules={"own_data_consent": False})
    made.releases = made.record(made.receipt(approved_by=OWNERS[:2]))
    made.facts |= {
        "releases": made.releases,
        "approvals": [made.approvals[name].to_dict() for name in OWNERS[:2]],
    }
    return made


@pytest.mark.claim("C113")
@pytest.mark.claim("C114")
@pytest.mark.parametrize("limit", ["owners-not-asked", "own-script", "platform-script"])
def test_a_genuine_guest_cannot_conceal_whom_it_did_not_ask_or_what_trained(
    careless: World, limit: str
) -> None:
    def conceal(document: dict[str, Any]) -> None:
        listed = document["predicate"]["limits"]
        document["predicate"]["limits"] = [
            each_limit for each_limit in listed if each_limit["id"] != limit
        ]

    data = requoted(careless, careless.manifest(), conceal)
    refusal(careless, data, ClaimContradicted)
    # Who reads it all the same is told.
    report = examine(data, careless.trust(), artefacts=None, now=NOW)
    assert f"Data of {OWNERS[2]} was used without approval." in " ".join(report.limits)
    assert report.to_dict()["scripts"].keys() == {"train.py"}


@pytest.mark.claim("C113")
def test_a_genuine_guest_cannot_claim_that_owners_were_asked(careless: World) -> None:
    def claim(document: dict[str, Any]) -> None:
        document["predicate"]["consortium"]["own_data_consent"] = True

    report = examine(
        requoted(careless, careless.manifest(), claim), careless.trust(), artefacts=None, now=NOW
    )
    failed = {check.name for check in report.checks if check.outcome == "failed"}
    assert {"recipe", "trust"} <= failed
    assert not report.accepted


# --- 76: documents that a platform added to ------------------------------------------------------


def adopted_world(folder: Path, *, launch_script: str | None = None, **added: Any) -> World:
    """A run in a guest that measured the document that a platform made of the recipe's."""
    image = f"registry.example/sealtrain@sha256:{'5a' * 32}"
    named = {} if launch_script is None else {"launch_script": script_digest(launch_script)}
    recipe = {**RECIPE, "hardware": {**RECIPE["hardware"], "image": image, **named}}

    def adopt(locked: LockedRecipe) -> LockedRecipe:
        document = canonical_json(json.loads(locked.compose_bytes) | {"name": ""} | added)
        return cast("LockedRecipe", UnreadRecipe(lock=locked.lock, compose_bytes=document))

    return make_world(folder, recipe, adopt=adopt)


@pytest.mark.claim("C440")
@pytest.mark.negative(76)
@pytest.mark.parametrize(
    ("added", "named"),
    [
        ({"pre_launch_script": EMPTY_SCRIPT}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "features": [], "salt": "ab"}, None),
        ({"pre_launch_script": "id"}, "id"),
    ],
)
def test_a_run_under_an_adopted_document_verifies(
    tmp_path: Path, added: dict[str, Any], named: str | None
) -> None:
    world = adopted_world(tmp_path, launch_script=named, **added)
    report = examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)
    assert report.accepted, report.to_dict()


@pytest.mark.claim("C440")
@pytest.mark.negative(76)
@pytest.mark.parametrize(
    ("added", "named"),
    [
        ({}, None),
        ({"pre_launch_script": "id"}, None),
        ({"pre_launch_script": "id "}, "id"),
        ({"pre_launch_script": EMPTY_SCRIPT + EMPTY_SCRIPT}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "init_script": "id"}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "public_logs": True}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "allowed_envs": ["PYTHONPATH"]}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "key_provider": "kms"}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "features": ["tproxy-net"]}, None),
        ({"pre_launch_script": EMPTY_SCRIPT, "metadata": {}}, None),
    ],
)
def test_a_run_under_a_document_with_anything_more_is_refused(
    tmp_path: Path, added: dict[str, Any], named: str | None
) -> None:
    """Its owners approved this very hash, its broker released, and its evidence is genuine."""
    world = adopted_world(tmp_path, launch_script=named, **added)
    refusal(world, world.manifest(), RecipeChanged)
