"""Carry out what owners signed. The sender needs money for gas and no right of any kind.

Everything is verified before it is sent, so that a wrong file costs nothing; the contract, and the
Safe, verify it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.consortium.chainfile import ChainFile
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.contracts import Payer, owners_app_auth, safe, send
from sealtrain_chain.decision import ChainDecision, verify_chain_decision
from sealtrain_chain.safe import NOBODY, SafeProposal, join_copies
from sealtrain_chain.slots import COMPOSE, DEVICE

if TYPE_CHECKING:
    from web3 import Web3


def carry_out(
    web3: Web3,
    chain: ChainFile,
    payer: Payer,
    decisions: Sequence[ChainDecision],
) -> dict[str, Any]:
    """Hand owners' votes to their OwnersAppAuth; returns the receipt.

    Args:
        web3: Of the node it is handed to.
        chain: Names contract and owners.
        payer: Pays for it.
        decisions: Of different owners, on the same thing.

    Raises:
        SignatureInvalid: A decision does not hold (``verify_chain_decision``).
        StatementInvalid: They do not decide on the same thing.
        ChainRefused: The contract refuses: too few, too late, another nonce.
        ChainUnreachable: The node failed, or it is in no block in time.
    """
    found = [verify_chain_decision(decision, chain).vote for decision in decisions]
    same = {
        (decision.kind, decision.subject, decision.verdict, decision.nonce) for decision in found
    }
    if len(same) != 1:
        raise StatementInvalid(
            "the files do not decide on the same thing",
            check="chain decision",
            got=f"{len(same)} different decisions",
            expected="one subject, decision and nonce",
            hint="a nonce is used up by each decision carried out: sign again with the present one",
        )
    if len({decision.owner for decision in found}) != len(found):
        raise StatementInvalid(
            "an owner's decision is given twice", check="chain decision", hint="leave one out"
        )
    contract = owners_app_auth(web3, chain.contract)
    first = found[0]
    call = contract.functions.decide(
        COMPOSE if first.kind == "compose" else DEVICE,
        bytes.fromhex(first.subject),
        first.verdict == "approve",
        votes_of(found),
    )
    return send(web3, payer, call)


def votes_of(decisions: Sequence[ChainDecision]) -> list[tuple[int, int, bytes, bytes]]:
    """Votes as the contract takes them, in ascending order of their owners."""
    return [
        (
            decision.not_after,
            decision.last_second,
            bytes.fromhex(decision.statement),
            bytes.fromhex(decision.signature),
        )
        for decision in sorted(decisions, key=lambda signed: signed.owner)
    ]


def execute_proposal(
    web3: Web3,
    chain: ChainFile,
    payer: Payer,
    copies: Sequence[SafeProposal],
) -> dict[str, Any]:
    """Have the Safe carry out a proposal with the signatures of all copies; returns the receipt.

    Raises:
        SignatureInvalid: A signature does not hold (``safe.joined``).
        StatementInvalid: The files are different proposals.
        ChainRefused: The Safe refuses: too few signatures, another nonce.
        ChainUnreachable: The node failed, or it is in no block in time.
    """
    proposal = join_copies(copies, chain)
    call = safe(web3, proposal.safe).functions.execTransaction(
        web3.to_checksum_address(proposal.contract),
        0,
        proposal.data,
        0,
        0,
        0,
        0,
        NOBODY,
        NOBODY,
        b"".join(bytes.fromhex(signature.signature) for signature in proposal.signatures),
    )
    return send(web3, payer, call)
