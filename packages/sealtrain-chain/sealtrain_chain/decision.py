"""One owner's decision for an OwnersAppAuth: an EIP-712 signature over what chain and ledger say.

A reader checks, without a node (spec/chain.md §5): 1. form, chain and contract; 2. the signature is
in its one form and an owner's of the chain file; 3. the off-chain decision inside says the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Document, Hex64
from sealtrain.consortium.chainfile import MAX_CHAIN_ID, Address, ChainFile
from sealtrain.consortium.decisions import Decision
from sealtrain.errors import SignatureInvalid
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.account import address, build_typed, name_signer, sign_message
from sealtrain_chain.slots import COMPOSE, DEVICE

if TYPE_CHECKING:
    from eth_account.messages import SignableMessage
    from eth_account.signers.local import LocalAccount

MAX_DECISION_BYTES = 512 << 10
NEVER = 2**64 - 1
"""Deadline of a revocation: a wrong clock must not keep an owner from stopping."""
_MAX_NUMBER = 2**53 - 1
"""The largest integer that JSON carries everywhere."""

_FIELDS = {
    "kind": "uint8",
    "subject": "bytes32",
    "approve": "bool",
    "nonce": "uint256",
    "notAfter": "uint64",
    "deadline": "uint64",
    "statement": "bytes32",
}

Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{130}$")]


class ChainDecision(Document):
    """A vote as its owner signed it."""

    what = "chain decision"
    refusal = StatementInvalid
    max_bytes = MAX_DECISION_BYTES

    version: Literal[1]
    chain_id: int = Field(ge=1, le=MAX_CHAIN_ID)
    contract: Address
    kind: Literal["compose", "device"]
    subject: Hex64
    verdict: Literal["approve", "revoke"]
    nonce: int = Field(ge=0, le=_MAX_NUMBER)
    not_after: int = Field(ge=0, le=_MAX_NUMBER)
    deadline: int | None = Field(ge=0, le=_MAX_NUMBER)
    """Last second at which it can be carried out; ``null`` in a revocation: never too late."""
    decision: Decision | None
    owner: Address
    signature: Signature

    @model_validator(mode="after")
    def _verdict_fits(self) -> Self:
        if self.verdict == "revoke" and (self.not_after or self.deadline is not None):
            raise ValueError("a revocation has not_after 0 and no deadline")
        if self.verdict == "approve" and self.deadline is None:
            raise ValueError("an approval has a deadline")
        return self

    @property
    def statement(self) -> str:
        """SHA-256 of the off-chain decision's canonical JSON; zeros without one."""
        if self.decision is None:
            return "00" * 32
        return sha256_hex(self.decision.to_bytes())

    @property
    def last_second(self) -> int:
        """The deadline that is signed."""
        return NEVER if self.deadline is None else self.deadline

    def message(self) -> SignableMessage:
        """What its owner signed."""
        return build_typed(
            {
                "name": "sealtrain OwnersAppAuth",
                "version": "1",
                "chainId": self.chain_id,
                "verifyingContract": self.contract,
            },
            "Decision",
            _FIELDS,
            {
                "kind": COMPOSE if self.kind == "compose" else DEVICE,
                "subject": bytes.fromhex(self.subject),
                "approve": self.verdict == "approve",
                "nonce": self.nonce,
                "notAfter": self.not_after,
                "deadline": self.last_second,
                "statement": bytes.fromhex(self.statement),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedChainDecision:
    """A vote that was verified, and whose it is."""

    owner: str
    """Name in the chain file."""
    vote: ChainDecision


def decide(
    account: LocalAccount,
    chain: ChainFile,
    *,
    subject: str,
    verdict: Literal["approve", "revoke"],
    nonce: int,
    not_after: int,
    deadline: int,
    decision: Decision | None,
) -> ChainDecision:
    """Sign a vote.

    Args:
        account: The owner's.
        chain: Names chain, contract and owners.
        subject: Compose hash, or device id where ``decision`` is ``None``.
        verdict: What is decided.
        nonce: Of the subject's next decision, read with a proof.
        not_after: Last second an approval counts; not used in a revocation.
        deadline: Last second it can be carried out; not used in a revocation.
        decision: The same for the ledger, which the signature covers too.

    Raises:
        SignatureInvalid: The account is no owner's.
        StatementInvalid: The off-chain decision says something else.
    """
    approves = verdict == "approve"
    unsigned = ChainDecision(
        version=1,
        chain_id=chain.chain_id,
        contract=chain.contract,
        kind="device" if decision is None else "compose",
        subject=subject,
        verdict=verdict,
        nonce=nonce,
        not_after=not_after if approves else 0,
        deadline=deadline if approves else None,
        decision=decision,
        owner=address(account),
        signature="00" * 65,
    )
    vote = unsigned.model_copy(update={"signature": sign_message(account, unsigned.message())})
    return verify_chain_decision(vote, chain).vote


def verify_chain_decision(vote: ChainDecision, chain: ChainFile) -> SignedChainDecision:
    """Return what an owner decided, once the module's checks hold.

    Raises:
        SignatureInvalid: Made for another chain or contract, not by an owner, or altered.
        StatementInvalid: The off-chain decision inside says something else.
    """
    if (vote.chain_id, vote.contract) != (chain.chain_id, chain.contract):
        raise SignatureInvalid(
            "the decision is for another contract",
            check="chain contract",
            got=f"{vote.contract} on chain {vote.chain_id}",
            expected=f"{chain.contract} on chain {chain.chain_id}",
            hint="decide again with the present chain file",
        )
    owner = name_signer(chain, vote.owner, vote.message(), vote.signature, what="decision")
    if (vote.kind == "compose") != (vote.decision is not None):
        raise _otherwise(owner, "kind")
    if vote.decision is not None:
        _same(vote, vote.decision, chain, owner)
    return SignedChainDecision(owner=owner, vote=vote)


def _same(vote: ChainDecision, decision: Decision, chain: ChainFile, owner: str) -> None:
    if decision.compose_hash != vote.subject:
        raise _otherwise(owner, "compose hash")
    if decision.decision != vote.verdict:
        raise _otherwise(owner, "verdict")
    if (decision.ends or 0) != vote.not_after:
        raise _otherwise(owner, "end")
    if chain.app_id == "contract" and f"0x{decision.app_id}" != chain.contract:
        raise _otherwise(owner, "app id")


def _otherwise(owner: str, what: str) -> StatementInvalid:
    return StatementInvalid(
        f"the decision for the ledger names another {what} than the one for the chain",
        check=f"chain decision {what}",
        owner=owner,
        hint="decide again: sealtrain chain approve",
    )
