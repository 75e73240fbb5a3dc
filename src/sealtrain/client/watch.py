"""An owner's client watches a broker's ledger: sees that it only grows, and cosigns it.

See ``spec/ledger.md`` §7 and §8. Every function takes a ``LedgerMemory`` that the caller holds,
so that of two programs with one memory neither takes the file back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.follow_succession import follow
from sealtrain.client.ledger_keys import present_key
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import SuccessionFile
from sealtrain.errors import LedgerInconsistent, SealtrainError, SignatureInvalid, Unreachable
from sealtrain.ledger.ledger import verify_extension, verify_proof
from sealtrain.ledger.witness import (
    LedgerMemory,
    Witnessed,
    cosign_tree_head,
    verify_witnessed,
)
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.cosignature import CosignSigner
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.note import SignedNote
from sealtrain.signing.tree_head import TreeHead, verify_tree_head


def observe(
    client: BrokerClient,
    kept: LedgerMemory,
    consortium: Consortium,
    *,
    attest: Callable[[], bytes],
    now: int,
    between: Sequence[SuccessionFile] = (),
) -> TreeHead:
    """Fetch the newest tree head and remember it, once it extends the one remembered.

    Args:
        kept: The owner's memory of its ledger.
        consortium: As the owner holds it.
        attest: Gives the ledger's key from the broker's evidence; asked the first time only.
        now: Seconds since the epoch.
        between: Successions that this owner missed, oldest first (``client.succeeded``).

    Raises:
        LedgerInconsistent: The ledger is shorter than it was, rewritten or forked.
        SignatureInvalid: The tree head is by another key than the one remembered or attested.
        BrokerUnreachable: No answer.
    """
    origin = ledger_origin(consortium.consortium_id)
    before = kept.head
    if before is not None and before.origin != origin:
        return follow(client, kept, consortium, attest=attest, between=between)
    key = known = kept.public_key or attest()
    newer = client.ledger_checkpoint()
    if before is not None:
        key = present_key(client, known, newer, origin=origin)
    try:
        after = verify_tree_head(newer, key, origin=origin)
    except SignatureInvalid as error:
        if before is None:
            raise
        raise SignatureInvalid(
            "the broker's ledger is not signed by the key it had before",
            check="ledger key",
            got=error.got or "a tree head that does not verify",
            expected=f"{origin} by the key in the state file",
            hint="ask the operator and the other owners why; a broker that lost its root secret "
            "begins a new ledger, and what it says needs a new state file",
        ) from error
    path: tuple[str, ...] | None = ()
    if before is not None and 0 < before.size < after.size:
        try:
            path = client.ledger_consistency(before.size, after.size)
        except Unreachable:
            raise
        except SealtrainError:
            path = None  # it showed a tree head that it cannot connect to the one before
    rotated_from = None if key == known else known
    return kept.advance(newer, path, key, origin=origin, now=now, rotated_from=rotated_from)


def cosign_newest(
    client: BrokerClient, kept: LedgerMemory, *, owner: str, signer: CosignSigner, now: int
) -> str:
    """Cosign the tree head that ``observe`` remembered and hand it to the broker.

    Args:
        kept: The owner's memory, after ``observe``.
        owner: The owner's name.
        signer: The owner's witness key (``Identity.witness``).
        now: Seconds since the epoch.

    Returns:
        The cosigned note.

    Raises:
        LedgerInconsistent: The broker no longer has the history it showed.
        Refused: The broker does not take the cosignature.
    """
    if kept.note is None:
        raise ValueError("observe first: nothing unseen is cosigned")
    line = cosign_tree_head(kept.note, owner, signer, at=now)
    note = SignedNote.from_text(kept.note).with_signature(line).to_text()
    client.submit_cosignature(note)
    return note


def find_witnessed_head(
    client: BrokerClient, kept: LedgerMemory, consortium: Consortium, *, quorum: int
) -> Witnessed:
    """The newest tree head that ``quorum`` owners cosigned, on the history remembered.

    Args:
        kept: The owner's memory, after ``observe``.
        consortium: Whose owners count.
        quorum: How many are needed, at least 1.

    Raises:
        SignatureInvalid: No tree head has so many cosignatures, or one does not verify.
        LedgerInconsistent: The others cosigned another history.
    """
    if kept.note is None or kept.public_key is None or kept.head is None:
        raise ValueError("observe first: there is nothing to compare with")
    origin, own = kept.head.origin, kept.head
    # Without a note of its own the present one shows the usual refusal, and who is missing.
    note = client.ledger_witnessed(quorum) or kept.note
    found = verify_witnessed(
        note, kept.public_key, origin=origin, witnesses=consortium.owners, quorum=quorum
    )
    (small, first), (large, second) = sorted(
        [(found.head.size, note), (own.size, kept.note)], key=lambda pair: pair[0]
    )
    path = client.ledger_consistency(small, large) if 0 < small < large else ()
    verify_extension(first, second, path, kept.public_key, origin=origin)
    return found


def verify_recorded(client: BrokerClient, kept: LedgerMemory, index: int, submitted: bytes) -> None:
    """See that a submission is where the broker says, on the history remembered.

    Args:
        kept: The owner's memory, after ``observe``.
        index: The index that the broker answered with.
        submitted: Bytes of the envelope.

    Raises:
        ProofInvalid: The entry is not in the ledger.
        AnswerInvalid: The entry is another one.
        LedgerInconsistent: The proof is for another history.
    """
    if kept.note is None or kept.public_key is None or kept.head is None:
        raise ValueError("observe first: there is nothing to compare with")
    origin, own = kept.head.origin, kept.head
    proof = client.ledger_proof(index)
    entry = verify_proof(proof, kept.public_key, origin=origin)
    if proof.size < own.size:
        raise LedgerInconsistent(
            "the proof of the submission is for an older ledger than the one seen",
            check="ledger size",
            got=proof.size,
            expected=f"at least {own.size}",
        )
    path = client.ledger_consistency(own.size, proof.size) if 0 < own.size < proof.size else ()
    verify_extension(kept.note, proof.checkpoint, path, kept.public_key, origin=origin)
    body = entry["body"]
    envelope = body.get("envelope") if isinstance(body, dict) else None
    if canonical_json(envelope) != canonical_json(Envelope.from_bytes(submitted).to_dict()):
        raise AnswerInvalid(
            "the ledger's entry is not what was submitted",
            check="ledger entry",
            got=sha256_hex(canonical_json(envelope)),
            expected=sha256_hex(submitted),
        )
