"""Signed notes and checkpoints: the specification's examples, cosignatures, strictness."""

from __future__ import annotations

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.errors import SignatureInvalid
from sealtrain.signing import note
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.note import NoteSignature, SignedNote
from sealtrain.signing.tree_head import TreeHead, sign_tree_head, verify_tree_head

SPECIFICATION_EXAMPLES = [
    "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned è subito sera.\n\n"
    "— quasimodo.example/salvatore NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMou"
    "FSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n",
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhc"
    "yv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n",
]
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
WITNESS = NoteSignature(name="witness.example/w", key_id=b"\x01\x02\x03\x04", signature=b"x" * 72)


@pytest.mark.parametrize("text", SPECIFICATION_EXAMPLES)
def test_the_specifications_examples_are_read_and_written_unchanged(text: str) -> None:
    parsed = SignedNote.from_text(text)
    assert parsed.to_text() == text
    assert len(parsed.signatures) == 1
    assert len(parsed.signatures[0].signature) == 64


def test_a_note_is_split_at_its_last_blank_line() -> None:
    assert SignedNote.from_text(SPECIFICATION_EXAMPLES[0]).text.endswith("\n\ned è subito sera.\n")


def test_what_was_signed_comes_back() -> None:
    signed = note.sign("hello\n", "log.example/1", SIGNER)
    assert note.verify(SignedNote.from_text(signed.to_text()), "log.example/1", SIGNER.public) == (
        "hello\n"
    )


def test_unknown_signatures_are_kept_and_ignored() -> None:
    signed = note.sign("hello\n", "log.example/1", SIGNER).with_signature(WITNESS)
    read = SignedNote.from_text(signed.to_text())
    assert read.signatures[1] == WITNESS
    assert note.verify(read, "log.example/1", SIGNER.public) == "hello\n"
    assert read.to_text() == signed.to_text()


def test_a_note_without_the_expected_signature_is_refused() -> None:
    signed = note.sign("hello\n", "log.example/1", SIGNER)
    other = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))
    for name, public in (("log.example/2", SIGNER.public), ("log.example/1", other.public)):
        with pytest.raises(
            SignatureInvalid, check=carries(check="note signer", got="log.example/1+db1c42f6")
        ):
            note.verify(signed, name, public)


def test_a_colliding_key_id_does_not_help() -> None:
    fake = NoteSignature(
        name="log.example/1",
        key_id=note.note_key_id("log.example/1", SIGNER.public),
        signature=bytes(64),
    )
    with pytest.raises(SignatureInvalid, check=carries(check="signature")):
        note.verify(SignedNote(text="x\n", signatures=(fake,)), "log.example/1", SIGNER.public)


GOOD = note.sign("hello\n", "log.example/1", SIGNER).to_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "hello\n",
        "hello\n\n",
        "\n\n— a b\n",
        GOOD[:-1],
        GOOD + "\n",
        GOOD + "trailing\n",
        GOOD.replace("\n\n", "\n"),
        GOOD.replace("— ", "- "),
        GOOD.replace("log.example/1 ", "log.example/1  "),
        GOOD.replace("log.example/1", "log+example"),
        GOOD.replace("log.example/1", "log\u00a0example"),
        GOOD.replace("hello", "hel\tlo"),
        GOOD.replace("hello", "hel\rlo"),
        GOOD.replace("hello", "\ud800"),
        "hello\n\n— a AAAA\n",
        "hello\n\n— a ????\n",
        "hello\n\n" + "— a AAAAAAAA\n" * 65,
        "x" * (note.MAX_NOTE_BYTES + 1),
    ],
    ids=range(20),
)
def test_text_that_is_no_note_is_refused(text: str) -> None:
    with pytest.raises(SignatureInvalid, check=carries(check="note")):
        SignedNote.from_text(text)


@pytest.mark.parametrize(
    ("text", "name"), [("a", "n"), ("a\tb\n", "n"), ("a\n", "n n"), ("a\n", "")]
)
def test_nothing_is_signed_that_would_not_be_read(text: str, name: str) -> None:
    with pytest.raises(ValueError):
        note.sign(text, name, SIGNER)


CHECKPOINT = TreeHead(origin="sealtrain/ledger/x", size=7, root="ab" * 32)


def test_a_checkpoint_survives_its_note() -> None:
    text = sign_tree_head(CHECKPOINT, SIGNER)
    assert verify_tree_head(text, SIGNER.public, origin=CHECKPOINT.origin) == CHECKPOINT
    assert text.split("\n")[:2] == ["sealtrain/ledger/x", "7"]


def test_a_key_name_other_than_the_origin_must_be_expected() -> None:
    text = sign_tree_head(CHECKPOINT, SIGNER, "key.example/1")
    with pytest.raises(SignatureInvalid):
        verify_tree_head(text, SIGNER.public, origin=CHECKPOINT.origin)
    kept = verify_tree_head(text, SIGNER.public, origin=CHECKPOINT.origin, name="key.example/1")
    assert kept == CHECKPOINT


def test_a_checkpoint_of_another_log_by_the_same_key_is_refused() -> None:
    text = sign_tree_head(CHECKPOINT, SIGNER, "key.example/1")
    with pytest.raises(
        SignatureInvalid, check=carries(check="ledger origin", got="sealtrain/ledger/x")
    ):
        verify_tree_head(text, SIGNER.public, origin="sealtrain/ledger/y", name="key.example/1")
