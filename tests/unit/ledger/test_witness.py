"""What an owner's client remembers of a ledger, what it cosigns and what it refuses."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import ConfigError, LedgerInconsistent, SignatureInvalid
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.witness import (
    cosign_tree_head,
    memory,
    verify_witnessed,
    witness_name,
)
from sealtrain.signing.cosignature import cosign, cosignature_key_id
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.identity import SEALING_KEY_BYTES, PublicIdentity
from sealtrain.signing.note import NoteSignature, SignedNote, note_key_id

pytestmark = pytest.mark.claim("C13")

ORIGIN = "sealtrain/ledger/witnessed"
NOW = 1_772_366_400
LOG = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
OTHER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32))
OWNERS = {
    name: Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    for number, name in enumerate(("ada", "bea", "cem"), 1)
}
WITNESSES = [
    PublicIdentity.of(name, signing_key=owner.public, sealing_key=bytes(SEALING_KEY_BYTES))
    for name, owner in OWNERS.items()
]


def ledger(path: Path, entries: int, word: str = "n", signer: Ed25519Signer = LOG) -> Ledger:
    opened = Ledger.open(path, origin=ORIGIN, signer=signer, clock=lambda: NOW)
    opened.append_all(("approval", {word: number}) for number in range(opened.size, entries))
    return opened


def see(state: Path, log: Ledger, signer: Ed25519Signer = LOG) -> int:
    """What a client does with an honest or dishonest log, without a network."""
    with memory(state) as kept:
        before = kept.head
        first = before.size if before else 0
        path = log.consistency(first) if 0 < first <= log.size else ()
        return kept.advance(log.checkpoint(), path, signer.public, origin=ORIGIN, now=NOW).size


def evidence(state: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_bytes()) for path in state.parent.glob("*.evidence-*.json")]


def test_a_memory_follows_a_log_that_grows_and_is_private(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for size in (0, 1, 1, 5, 8):
        with ledger(tmp_path / "log", size) as log:
            assert see(state, log) == size
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    with memory(state) as kept:
        assert kept.head is not None
        assert (kept.head.size, kept.public_key) == (8, LOG.public)
    assert evidence(state) == []


@pytest.mark.parametrize("size", [0, 3, 6, 7, 9, 20])
def test_another_history_is_refused_remembered_and_not_taken(tmp_path: Path, size: int) -> None:
    state = tmp_path / "state.json"
    with ledger(tmp_path / "log", 7) as log:
        see(state, log)
        seen = log.checkpoint()
    kept = state.read_bytes()
    with ledger(tmp_path / "other", size, word="m") as forged:
        with pytest.raises(
            LedgerInconsistent,
            check=carries(check="ledger size" if size < 7 else "ledger consistency"),
        ) as caught:
            see(state, forged)
        shown = forged.checkpoint()
    assert state.read_bytes() == kept
    (found,) = evidence(state)
    assert (found["older"], found["newer"]) == (seen, shown)
    assert from_base64(str(found["public_key"])) == LOG.public
    assert "evidence" in str(caught.value.hint)


def test_a_log_that_gives_no_proof_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with ledger(tmp_path / "log", 3) as log:
        see(state, log)
    with ledger(tmp_path / "log", 5) as log, memory(state) as kept:
        with pytest.raises(
            LedgerInconsistent,
            check=carries(check="ledger consistency", got="no consistency proof"),
        ):
            kept.advance(log.checkpoint(), None, LOG.public, origin=ORIGIN, now=NOW)
        assert kept.head is not None
        assert kept.head.size == 3
    assert evidence(state)[0]["path"] is None


def test_a_log_under_another_key_is_refused_without_accusing_the_first(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with ledger(tmp_path / "log", 3) as log:
        see(state, log)
    with ledger(tmp_path / "other", 5, signer=OTHER) as other:
        for claimed in (LOG, OTHER):
            with pytest.raises(SignatureInvalid):
                see(state, other, claimed)
    assert evidence(state) == []


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "not json", '{"version":2}'],
)
def test_a_damaged_memory_is_not_begun_afresh(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(ConfigError, check=carries(check="state file")), memory(state):
        pass
    assert state.read_text() == text


def test_an_edited_memory_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with ledger(tmp_path / "log", 3) as log:
        see(state, log)
    state.write_text(state.read_text().replace("\\n3\\n", "\\n2\\n"))
    with pytest.raises(SignatureInvalid), memory(state):
        pass


def test_a_place_that_cannot_be_written_is_said_before_anything_is_signed(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, check=carries(check="state file")),
        memory(tmp_path / "none" / "state.json"),
    ):
        pass


def test_two_programs_take_turns(tmp_path: Path) -> None:
    state, order = tmp_path / "state.json", []
    holding, waiting = threading.Event(), threading.Event()

    def second() -> None:
        holding.wait(10)
        waiting.set()
        with memory(state) as kept:
            order.append("second")
            assert kept.head is not None

    thread = threading.Thread(target=second)
    thread.start()
    with ledger(tmp_path / "log", 3) as log, memory(state) as kept:
        holding.set()
        waiting.wait(10)
        thread.join(0.1)
        order.append("first")
        kept.advance(log.checkpoint(), (), LOG.public, origin=ORIGIN, now=NOW)
    thread.join(10)
    assert order == ["first", "second"]


def test_a_memory_stays_small_whatever_a_broker_hangs_on_its_note(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with ledger(tmp_path / "log", 3) as log:
        note = SignedNote.from_text(log.checkpoint())
    for number in range(60):
        junk = NoteSignature(name=ORIGIN, key_id=number.to_bytes(4), signature=bytes(4000))
        note = note.with_signature(junk)
    with memory(state) as kept:
        kept.advance(note.to_text(), (), LOG.public, origin=ORIGIN, now=NOW)
    assert state.stat().st_size < 1000
    with memory(state) as kept:
        assert kept.note == log_note(note)


def log_note(note: SignedNote) -> str:
    own = [line for line in note.signatures if line.key_id == note_key_id(ORIGIN, LOG.public)]
    return SignedNote(text=note.text, signatures=tuple(own)).to_text()


def test_a_quorum_counts_owners(tmp_path: Path) -> None:
    with ledger(tmp_path / "log", 3) as log:
        note = SignedNote.from_text(log.checkpoint())
    for number, (name, signer) in enumerate(OWNERS.items()):
        note = note.with_signature(cosign_tree_head(note.to_text(), name, signer, at=NOW + number))
    found = verify_witnessed(
        note.to_text(), LOG.public, origin=ORIGIN, witnesses=WITNESSES, quorum=3
    )
    assert found.times == {"ada": NOW, "bea": NOW + 1, "cem": NOW + 2}
    assert found.head.size == 3
    with pytest.raises(
        SignatureInvalid, check=carries(check="witness quorum", got="1 (ada)")
    ) as caught:
        verify_witnessed(
            note.to_text(), LOG.public, origin=ORIGIN, witnesses=WITNESSES[:1], quorum=2
        )
    assert (caught.value.check, caught.value.got) == ("witness quorum", "1 (ada)")


@pytest.mark.parametrize("at", [0, -1, 2**53])
def test_a_cosignature_needs_a_real_time(at: int) -> None:
    with pytest.raises(ValueError):
        cosign("text\n", witness_name("ada"), LOG, at=at)


def test_key_ids_of_cosignatures_are_not_those_of_notes() -> None:
    name = witness_name("ada")
    assert cosignature_key_id(name, LOG.public) != note_key_id(name, LOG.public)
    assert to_base64(cosignature_key_id(name, LOG.public)) == to_base64(
        cosignature_key_id("sealtrain/witness/ada", LOG.public)
    )
