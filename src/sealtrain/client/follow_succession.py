"""An owner's memory follows a consortium to its successor, and nowhere else.

See ``spec/succession.md`` §4. A memory of one consortium's ledger takes another origin only when
the new ledger's first entry is a succession that

1. is in the ledger whose key the broker attested,
2. names the consortium the owner holds as successor, and the remembered one as predecessor,
3. was signed by enough of the predecessor's owners and put in force in time, and
4. does not contradict the tree head that was remembered.

An owner who missed a step gives its file: successions between the remembered consortium and its
successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sealtrain.base.clock import from_rfc3339
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import Succession, SuccessionFile, verify_succession
from sealtrain.errors import LedgerInconsistent, SignatureInvalid
from sealtrain.ledger.ledger import verify_extension, verify_proof
from sealtrain.ledger.witness import LedgerMemory
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.tree_head import TreeHead, verify_tree_head


def follow(
    client: BrokerClient,
    kept: LedgerMemory,
    consortium: Consortium,
    *,
    attest: Callable[[], bytes],
    between: Sequence[SuccessionFile] = (),
) -> TreeHead:
    """Remember the successor's ledger in the place of the one remembered.

    Args:
        client: Of a broker of the successor.
        kept: The owner's memory, of the predecessor's ledger.
        consortium: The successor, as the owner holds it.
        attest: Gives the ledger's key from the broker's evidence.
        between: Successions whose ledgers the owner never looked at, oldest first.

    Raises:
        SignatureInvalid: The ledger follows no other, or another one than the remembered.
        LedgerInconsistent: What the owners signed contradicts the remembered tree head.
        Refused: The succession does not hold.
    """
    before = kept.head
    if before is None:
        raise ValueError("there is nothing to follow from")
    origin, key = ledger_origin(consortium.consortium_id), attest()
    newer = client.ledger_checkpoint()
    after = verify_tree_head(newer, key, origin=origin)
    if after.size == 0:
        raise _stranger(before.origin, origin)
    proof = client.ledger_proof(0)
    entry = verify_proof(proof, key, origin=origin)
    (small, first), (large, second) = sorted(
        [(after.size, newer), (proof.size, proof.checkpoint)], key=lambda pair: pair[0]
    )
    path = client.ledger_consistency(small, large) if small < large else ()
    verify_extension(first, second, path, key, origin=origin)
    body = entry["body"]
    if proof.index != 0 or entry["kind"] != "succession" or not isinstance(body, dict):
        raise _stranger(before.origin, origin)
    predecessor = Consortium.from_dict(body.get("predecessor"))
    reached = before.origin
    for file in between:
        step = file.verify()
        if ledger_origin(step.predecessor.consortium_id) == reached:
            saw_the_same(step, before, kept.public_key or b"")
            reached = ledger_origin(step.successor.consortium_id)
    if ledger_origin(predecessor.consortium_id) != reached:
        raise _stranger(reached, ledger_origin(predecessor.consortium_id))
    found = verify_succession(Envelope.from_dict(body.get("envelope")), predecessor)
    if found.successor.consortium_id != consortium.consortium_id:
        raise _stranger(before.origin, ledger_origin(found.successor.consortium_id))
    found.in_time(from_rfc3339(str(entry["at"])))
    saw_the_same(found, before, kept.public_key or b"")
    kept.succeed(newer, key, origin=origin)
    return after


def saw_the_same(found: Succession, before: TreeHead, public_key: bytes) -> None:
    """See that the signers of a succession saw the history that was remembered.

    Args:
        found: Verified.
        before: What was remembered.
        public_key: The key of that ledger, 32 bytes.

    Raises:
        LedgerInconsistent: At the same size they saw another root.
    """
    for note in found.ledgers:
        try:
            seen = verify_tree_head(note, public_key, origin=before.origin)
        except SignatureInvalid:
            continue  # of another broker
        if seen.size == before.size and seen.root != before.root:
            raise LedgerInconsistent(
                "the owners who signed the succession saw another history than you did",
                check="succession",
                got=f"{seen.root} at size {seen.size}",
                expected=before.root,
                hint="follow it only when the owners know why; both tree heads are signed",
            )


def _stranger(got: str, expected: str) -> SignatureInvalid:
    return SignatureInvalid(
        "the state file is of another consortium's ledger, which this one does not follow",
        check="ledger origin",
        got=got,
        expected=expected,
        hint="keep one --memory file for each broker; a successor's ledger begins with the "
        "succession its owners signed (sealtrain broker serve --succeeds); give those you missed "
        "to: sealtrain consortium follow",
    )
