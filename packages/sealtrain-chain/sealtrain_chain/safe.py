"""Proposals to a Safe that owns dstack's app contract: add or remove one compose hash, no more.

A proposal file means exactly one SafeTx (spec/chain.md §6). There is no field for other calls,
values or gas refunds, so none can be slipped in. Copies with signatures are joined to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import Document, Hex64, StrictModel
from sealtrain.consortium.chainfile import MAX_CHAIN_ID, Address, ChainFile
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.account import address, build_typed, name_signer, sign_message
from sealtrain_chain.decision import Signature

if TYPE_CHECKING:
    from eth_account.messages import SignableMessage
    from eth_account.signers.local import LocalAccount

NOBODY = "0x" + "00" * 20
MAX_PROPOSAL_BYTES = 64 << 10
_SELECTORS = {"add": "dfc77223", "remove": "67b3f22c"}
"""Of ``addComposeHash(bytes32)`` and ``removeComposeHash(bytes32)``."""

_FIELDS = {
    "to": "address",
    "value": "uint256",
    "data": "bytes",
    "operation": "uint8",
    "safeTxGas": "uint256",
    "baseGas": "uint256",
    "gasPrice": "uint256",
    "gasToken": "address",
    "refundReceiver": "address",
    "nonce": "uint256",
}


class SafeSignature(StrictModel):
    """One owner's."""

    owner: Address
    signature: Signature


class SafeProposal(Document):
    """One call of the app contract by the Safe that owns it."""

    what = "Safe proposal"
    refusal = StatementInvalid
    max_bytes = MAX_PROPOSAL_BYTES
    form = ("proposal", None)

    version: Literal[1]
    chain_id: int = Field(ge=1, le=MAX_CHAIN_ID)
    safe: Address
    contract: Address
    action: Literal["add", "remove"]
    compose_hash: Hex64
    nonce: int = Field(ge=0, le=2**53 - 1)
    """The Safe's."""
    signatures: tuple[SafeSignature, ...] = Field(max_length=64)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        owners = [signature.owner for signature in self.signatures]
        if owners != sorted(set(owners)):
            raise ValueError("signatures must be sorted by owner, without repetition")
        return self

    @property
    def data(self) -> bytes:
        """The call that the Safe makes."""
        return bytes.fromhex(_SELECTORS[self.action] + self.compose_hash)

    def message(self) -> SignableMessage:
        """The SafeTx that is signed."""
        return build_typed(
            {"chainId": self.chain_id, "verifyingContract": self.safe},
            "SafeTx",
            _FIELDS,
            {
                "to": self.contract,
                "value": 0,
                "data": self.data,
                "operation": 0,
                "safeTxGas": 0,
                "baseGas": 0,
                "gasPrice": 0,
                "gasToken": NOBODY,
                "refundReceiver": NOBODY,
                "nonce": self.nonce,
            },
        )


def sign_proposal(account: LocalAccount, proposal: SafeProposal, chain: ChainFile) -> SafeProposal:
    """The proposal with one more signature. Raises as ``verify_proposal``."""
    signature = SafeSignature(
        owner=address(account), signature=sign_message(account, proposal.message())
    )
    return join_copies([proposal, proposal.model_copy(update={"signatures": (signature,)})], chain)


def join_copies(copies: Sequence[SafeProposal], chain: ChainFile) -> SafeProposal:
    """One proposal with the signatures of all copies.

    Raises:
        StatementInvalid: They are of different proposals.
        SignatureInvalid: As ``verify_proposal``.
    """
    if len({copy.model_copy(update={"signatures": ()}) for copy in copies}) != 1:
        raise StatementInvalid(
            "the files are different proposals",
            check="proposal",
            hint="join copies of one proposal only",
        )
    found = {
        sign.owner: sign
        for proposal in copies
        for sign in verify_proposal(proposal, chain).signatures
    }
    return copies[0].model_copy(
        update={"signatures": tuple(found[owner] for owner in sorted(found))}
    )


def verify_proposal(proposal: SafeProposal, chain: ChainFile) -> SafeProposal:
    """Return a proposal about this contract whose signatures hold.

    Raises:
        StatementInvalid: It is about another contract or chain.
        SignatureInvalid: A signature is not by an owner, or does not hold.
    """
    if (proposal.chain_id, proposal.contract) != (chain.chain_id, chain.contract):
        raise StatementInvalid(
            "the proposal is about another contract",
            check="chain contract",
            got=f"{proposal.contract} on chain {proposal.chain_id}",
            expected=f"{chain.contract} on chain {chain.chain_id}",
        )
    for signature in proposal.signatures:
        name_signer(
            chain, signature.owner, proposal.message(), signature.signature, what="proposal"
        )
    return proposal
