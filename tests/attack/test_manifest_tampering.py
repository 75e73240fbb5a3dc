"""Change anything about a manifest, an output file or what is trusted: refused, exit code 3."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, World, make_world
from world import signer, simulated_pki

from sealtrain.attest.errors import QuoteRootUntrusted, ReportDataMismatch
from sealtrain.attest.evidence import Evidence
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import Refused, SealtrainError, SignatureInvalid, TrustInvalid
from sealtrain.manifest import form
from sealtrain.manifest.errors import ManifestMalformed, TrustMismatch
from sealtrain.manifest.trust import parse_trust
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.signing import dsse, statement

pytestmark = pytest.mark.claim("C25")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def honest(world: World) -> bytes:
    data = world.manifest()
    verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    return data


def refusal(world: World, data: bytes, **trust: Any) -> SealtrainError:
    """The error ``sealtrain verify`` would exit with."""
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(**trust), artefacts=world.artefacts, now=NOW)
    assert caught.value.exit_code == 3
    return caught.value


# --- Bytes of the file -------------------------------------------------------------------------


def test_no_sampled_byte_can_be_changed(world: World, honest: bytes) -> None:
    positions = {*range(0, len(honest), len(honest) // 80), *range(20), *range(-20, 0)}
    for position in positions:
        changed = bytearray(honest)
        changed[position] ^= 1
        refusal(world, bytes(changed))


def test_no_byte_can_be_dropped_or_doubled(world: World, honest: bytes) -> None:
    for position in range(0, len(honest), len(honest) // 40):
        refusal(world, honest[:position] + honest[position + 1 :])
        refusal(world, honest[:position] + honest[position : position + 1] + honest[position:])


def test_no_white_space_can_be_added(world: World, honest: bytes) -> None:
    places = [index for index, byte in enumerate(honest) if byte in b"{}[]:,"][::2]
    for place in [0, *places, len(honest)]:
        for space in (b" ", b"\n"):
            refused = refusal(world, honest[:place] + space + honest[place:])
            assert isinstance(refused, ManifestMalformed)


@pytest.mark.parametrize("length", [0, 1, 2, 100, -1, -2, -100])
def test_it_cannot_be_cut(world: World, honest: bytes, length: int) -> None:
    assert isinstance(refusal(world, honest[:length]), ManifestMalformed)


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"[]",
        b"{}",
        b"0",
        b'"manifest"',
        b"\xff\xfe",
        b"{" * 100,
        b"[" * 70 + b"]" * 70,
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b"{\x00}",
        b'{"bundle":{"dsseEnvelope":{}},"evidence":{}}',
        b'{"bundle":[],"evidence":[],"version":1}',
        b" " * (MAX_MANIFEST_BYTES + 1),
    ],
    ids=lambda data: repr(data[:12]),
)
@pytest.mark.negative(70)
def test_what_is_no_manifest_is_malformed_and_not_a_crash(world: World, data: bytes) -> None:
    assert isinstance(refusal(world, data), ManifestMalformed)


# --- Fields of the file ------------------------------------------------------------------------


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every object, array and leaf in a JSON value, by path."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, *path, key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, *path, index)


def variants(document: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """The document with one place removed, emptied, retyped or accompanied."""

    def changed(change: Callable[[Any, Any], None]) -> Any:
        copied = copy.deepcopy(document)
        parent = copied
        for step in path[:-1]:
            parent = parent[step]
        change(parent, path[-1])
        return copied

    yield changed(lambda parent, last: parent.pop(last))
    for other in (None, True, 0, "", "x", [], {}, [1], {"a": 1}):
        yield changed(lambda parent, last, other=other: parent.__setitem__(last, other))
    if isinstance(path[-1], str):
        yield changed(lambda parent, last: parent.__setitem__(last + "_", parent[last]))


def test_no_field_of_the_file_can_be_changed(world: World, honest: bytes) -> None:
    document = json.loads(honest)
    for path in places(document):
        for changed in variants(document, path):
            if changed != document:
                refusal(world, canonical_json(changed))


@pytest.mark.negative(65)
def test_the_envelopes_cannot_be_swapped_or_doubled(world: World, honest: bytes) -> None:
    document = json.loads(honest)
    first, second = document["bundle"]["dsseEnvelope"], document["evidence"]
    swapped = copy.deepcopy(document)
    swapped["bundle"]["dsseEnvelope"], swapped["evidence"] = second, first
    assert isinstance(refusal(world, canonical_json(swapped)), ManifestMalformed)
    doubled = copy.deepcopy(document)
    doubled["evidence"]["signatures"] *= 2
    assert isinstance(refusal(world, canonical_json(doubled)), SignatureInvalid)
    stranger = copy.deepcopy(document)
    payload = base64.b64decode(first["payload"])
    extra = dsse.sign(payload, first["payloadType"], signer("stranger")).to_dict()
    stranger["bundle"]["dsseEnvelope"]["signatures"] += extra["signatures"]
    assert isinstance(refusal(world, canonical_json(stranger)), SignatureInvalid)


# --- Somebody without a guest signs anew --------------------------------------------------------


def forged(world: World, honest: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The honest manifest with another statement, signed by a key of the attacker's own."""
    attacker = signer("attacker")
    read = form.read(honest)
    document = json.loads(read.signed_statement.payload)
    document["predicate"]["signer"]["public_key"] = to_base64(attacker.public)
    change(document)
    return form.write(
        dsse.sign(canonical_json(document), statement.PAYLOAD_TYPE, attacker),
        dsse.sign(read.signed_evidence.payload, form.EVIDENCE_PAYLOAD_TYPE, attacker),
        attacker.public,
    )


@pytest.mark.negative(66)
def test_a_statement_signed_by_a_key_that_no_quote_names_is_refused(
    world: World, honest: bytes
) -> None:
    data = forged(world, honest, lambda document: None)
    report = examine(data, world.trust(), artefacts=world.artefacts, now=NOW)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes["signature"] == outcomes["quote"] == "passed"
    assert outcomes["binding"] == "failed"
    assert isinstance(report.refusal, ReportDataMismatch)


def test_the_guest_key_alone_cannot_change_what_was_quoted(world: World, honest: bytes) -> None:
    read = form.read(honest)
    document = json.loads(read.signed_statement.payload)
    for path in (("run", "metrics", "accuracy"), ("run", "steps"), ("compute", "wall_s")):
        changed = copy.deepcopy(document)
        place = changed["predicate"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = 1
        data = form.write(
            dsse.sign(canonical_json(changed), statement.PAYLOAD_TYPE, world.guest_key),
            read.signed_evidence,
            world.guest_key.public,
        )
        assert isinstance(refusal(world, data), ReportDataMismatch)


@pytest.mark.negative(66)
def test_evidence_of_another_run_is_refused(world: World, honest: bytes) -> None:
    def longer(facts: dict[str, Any]) -> None:
        facts["run"]["steps"] = 301

    other = form.read(world.manifest(longer))
    data = form.write(
        form.read(honest).signed_statement, other.signed_evidence, world.guest_key.public
    )
    assert isinstance(refusal(world, data), ReportDataMismatch)


def test_no_part_of_the_evidence_can_be_changed_by_the_guest_key(
    world: World, honest: bytes
) -> None:
    read = form.read(honest)
    document = json.loads(read.signed_evidence.payload)
    tried = 0
    for path in places(document):
        if isinstance(at(document, path), dict | list) or means_nothing(document, path):
            continue
        changed = copy.deepcopy(document)
        at(changed, path[:-1])[path[-1]] = altered(at(document, path))
        try:
            payload = Evidence.from_dict(changed).to_bytes()
        except SealtrainError:
            payload = canonical_json(changed)
        data = form.write(
            read.signed_statement,
            dsse.sign(payload, form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
            world.guest_key.public,
        )
        refusal(world, data)
        tried += 1
    assert tried > 40


def means_nothing(evidence: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """What no quote covers and no check reads (spec/run-manifest.md §1)."""
    if path in {("cpu", "vm_config"), ("collateral", "pck_crl_issuer_chain")}:
        return True
    label = path[:2] == ("cpu", "event_log") and path[-1] in {"event", "event_type", "version"}
    return label and evidence["cpu"]["event_log"][path[2]]["imr"] < 3


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def altered(value: Any) -> Any:
    """A near value of the same form."""
    if isinstance(value, int):
        return value + 1
    if not value:
        return "00"
    middle = len(value) // 2
    other = {"0": "1", "A": "B", "a": "b"}.get(value[middle], "0")
    return value[:middle] + other + value[middle + 1 :]


# --- The output files --------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _swap(path: Path) -> None:
    other = path.with_name("config.json.sealed")
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize(
    "change",
    [
        _flip,
        _swap,
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("nowhere")),
    ],
    ids=["flip", "swap", "remove", "empty", "append", "truncate", "folder", "dangling link"],
)
@pytest.mark.negative(64)
def test_no_output_file_can_be_changed(
    world: World, honest: bytes, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(world.artefacts, folder)
    change(folder / "model/model.safetensors.sealed")
    with pytest.raises(Refused) as caught:
        verify_manifest(honest, world.trust(), artefacts=folder, now=NOW)
    assert caught.value.code == "subject-mismatch"


@pytest.mark.claim("C29")
@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a//b", "a/./b", "a\\b", "a\x1b[2J"])
def test_a_manifest_cannot_name_files_outside_its_folder(
    world: World, honest: bytes, name: str
) -> None:
    def rename(document: dict[str, Any]) -> None:
        document["subject"][0]["name"] = name
        document["predicate"]["outputs"]["files"][0]["name"] = name

    assert isinstance(refusal(world, forged(world, honest, rename)), ManifestMalformed)


# --- What is trusted ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["consortium_id", "recipe_hash", "compose_hash", "app_id"])
def test_any_other_pin_is_refused(world: World, honest: bytes, name: str) -> None:
    pinned = str(world.trust_document()[name])
    for position in (0, len(pinned) // 2, len(pinned) - 1):
        other = "0" if pinned[position] != "0" else "1"
        changed = pinned[:position] + other + pinned[position + 1 :]
        assert isinstance(refusal(world, honest, **{name: changed}), TrustMismatch)


def test_another_brokers_key_is_refused(world: World, honest: bytes) -> None:
    brokers = world.brokers(signer("other broker"))
    assert isinstance(refusal(world, honest, brokers=brokers), SignatureInvalid)


def test_another_root_is_refused(world: World, honest: bytes) -> None:
    policy = world.trust_document()["appraisal"]
    policy["root"] = {"insecure_simulator_root": to_base64(simulated_pki("another").root_der)}
    assert isinstance(refusal(world, honest, appraisal=policy), QuoteRootUntrusted)


def test_a_root_with_one_changed_byte_does_not_sign_itself(world: World) -> None:
    root = simulated_pki().root_der
    for position in range(0, len(root), 7):
        changed = bytearray(root)
        changed[position] ^= 1
        document = world.trust_document()
        document["appraisal"]["root"] = {"insecure_simulator_root": to_base64(bytes(changed))}
        with pytest.raises(TrustInvalid):
            parse_trust(document)


@pytest.mark.claim("C29")
def test_a_report_shows_text_from_a_manifest_as_text(world: World) -> None:
    from sealtrain.manifest.report import render

    attack = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"

    def inject(facts: dict[str, Any]) -> None:
        facts["run"]["environment"] = {attack: attack}
        facts["compute"]["accelerators"] = [attack]
        facts["limits"].append({"id": "unknown-limit", "text": attack})

    def unmarked(facts: dict[str, Any]) -> None:
        inject(facts)
        facts["limits"].append({"id": "accelerator-binding", "text": attack})

    report = examine(world.manifest(unmarked), world.trust(), artefacts=None, now=NOW)
    page = render(report)
    shown, own, script = page.partition("<script>")  # ours, at the end; the policy names its hash
    assert report.accepted
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert own
    assert "<script" not in shown
    assert "<script" not in script
    assert "<img" not in page
    assert attack not in page


@pytest.mark.claim("C29")
def test_text_from_a_manifest_cannot_drive_a_terminal(world: World) -> None:
    for place in ("environment", "accelerators"):

        def inject(facts: dict[str, Any], place: str = place) -> None:
            if place == "environment":
                facts["run"]["environment"] = {"python": "3.11\x1b]0;owned\x07"}
            else:
                facts["compute"]["accelerators"] = ["gpu\u202e"]

        with pytest.raises(ValueError, match=place):
            world.manifest(inject)
