"""The chain's word in receipts (spec/chain.md §8): part of check 11.

Every word must prove what its receipt needs. Whether its block is one of the chain, and the
contract the owners', only the auditor's trust file says.
"""

from __future__ import annotations

from collections.abc import Sequence

from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.chainword import ChainWord, ProvenWord, read_word
from sealtrain.consortium.receipts import ReleaseReceipt
from sealtrain.errors import ChainRefused
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S
from sealtrain.manifest.errors import TrustMismatch
from sealtrain.manifest.trust import TrustedChain


def chain_allowed(receipts: Sequence[ReleaseReceipt], trusted: TrustedChain | None) -> None:
    """The chain allowed what brokers released, as far as receipts and trust file say.

    Args:
        receipts: Those that count.
        trusted: Of the trust file; ``None`` where it names no chain.

    Raises:
        ProofInvalid: A word does not prove anything.
        ChainRefused: It proves that the deployment did not count, its block is stale, or a receipt
            has no word, and the trust file asks for one.
        TrustMismatch: It is of another chain, contract, code or block than the trust file's.
    """
    if trusted is not None and not receipts:
        raise _no_word("no receipt")
    for receipt in receipts:
        if receipt.chain is None:
            if trusted is not None:
                raise _no_word(receipt.released_at)
            continue
        proven = read_word(receipt.chain, receipt.compose_hash)
        moment = from_rfc3339(receipt.released_at)
        if moment > proven.until:
            raise ChainRefused(
                "the chain did not allow the deployment when its keys were released",
                check="compose hash",
                got=receipt.compose_hash,
                expected=f"one that {receipt.chain.contract} allowed at {receipt.released_at}",
            )
        if trusted is not None:
            _compare(receipt, receipt.chain, proven, trusted)
            _require_recent(moment, proven, trusted)


def chain_blocks(receipts: Sequence[ReleaseReceipt]) -> tuple[tuple[int, ChainWord, str], ...]:
    """Height, word and hash of each block that receipts rely on, each once, by height."""
    found = {}
    for receipt in receipts:
        if receipt.chain is not None:
            proven = read_word(receipt.chain, receipt.compose_hash)
            found[receipt.chain.chain_id, proven.block] = (
                proven.number,
                receipt.chain,
                proven.block,
            )
    return tuple(found[key] for key in sorted(found, key=lambda key: (found[key][0], key)))


def _compare(
    receipt: ReleaseReceipt, word: ChainWord, proven: ProvenWord, trusted: TrustedChain
) -> None:
    facts = {
        "chain id": (word.chain_id, trusted.chain_id),
        "contract": (word.contract, trusted.contract),
        "kind of contract": (word.kind, trusted.kind),
        "contract code": (proven.code_hash, trusted.code_hash),
        "implementation": (proven.implementation, trusted.implementation),
    }
    if trusted.app_id == "contract":
        facts["app id"] = (receipt.app_id, trusted.contract[2:])
    for what, (got, expected) in facts.items():
        if got != expected:
            raise TrustMismatch(
                f"a receipt relies on another {what} on the chain than you trust",
                check=f"chain: {what}",
                got=got,
                expected=expected,
            )
    if proven.block not in trusted.blocks:
        raise TrustMismatch(
            "a receipt relies on a block that your trust file does not name",
            check="chain: block",
            got=f"{proven.block} at height {proven.number}",
            expected="a block of chain.blocks",
            hint="find this height on the chain by a node that you trust, and compare the hash",
        )


def _require_recent(moment: int, proven: ProvenWord, trusted: TrustedChain) -> None:
    earliest = moment - trusted.max_age_seconds - CLOCK_TOLERANCE_S
    latest = moment + 2 * CLOCK_TOLERANCE_S
    if not earliest <= proven.time <= latest:
        raise ChainRefused(
            "a receipt relies on a stale block of the chain, which would hide a revocation",
            check="block age",
            got=f"{moment - proven.time} s old",
            expected=f"at most {trusted.max_age_seconds} s",
        )


def _no_word(got: str) -> ChainRefused:
    return ChainRefused(
        "a receipt carries no word of the chain, and your trust file asks for it",
        check="chain",
        got=got,
        expected="a proof in every receipt that counts",
        hint="its broker asked no chain, or one whose headers it does not know",
    )
