"""The header of a block, from the fields that a node answers (Yellow Paper §4.4, and later EIPs).

A block's hash is of its header. So the header, where it is known, binds height, time and state root
to the hash, and a reader of a manifest needs only the hash.
"""

from __future__ import annotations

import re
from typing import Final

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.base.canonical import JsonValue

_NUMBERS: Final = frozenset(
    {
        *("difficulty", "number", "gasLimit", "gasUsed", "timestamp"),
        *("baseFeePerGas", "blobGasUsed", "excessBlobGas"),
    }
)
_FIRST: Final = (
    *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot"),
    *("logsBloom", "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData"),
    *("mixHash", "nonce"),
)
_LATER: Final = (
    "baseFeePerGas",  # EIP-1559
    "withdrawalsRoot",  # EIP-4895
    *("blobGasUsed", "excessBlobGas"),  # EIP-4844
    "parentBeaconBlockRoot",  # EIP-4788
    "requestsHash",  # EIP-7685
)
_QUANTITY: Final = re.compile(r"0x[0-9a-f]{1,64}")
_DATA: Final = re.compile(r"0x(?:[0-9a-f]{2}){0,2048}")


def header_of(block: JsonValue, block_hash: str) -> bytes | None:
    """RLP of a block's header; ``None`` where these fields do not hash to the block's hash.

    Args:
        block: A node's answer to ``eth_getBlockByNumber``.
        block_hash: As the node names it, ``0x`` and 64 hex digits.
    """
    import rlp

    if not isinstance(block, dict):
        return None
    later = [name for name in _LATER if block.get(name) is not None]
    fields = [_field(name, block.get(name)) for name in (*_FIRST, *later)]
    if None in fields:
        return None
    header: bytes = rlp.encode(fields)
    return header if f"0x{keccak256(header).hex()}" == block_hash else None


def _field(name: str, value: JsonValue) -> bytes | None:
    form = _QUANTITY if name in _NUMBERS else _DATA
    if not isinstance(value, str) or not form.fullmatch(value):
        return None
    if name not in _NUMBERS:
        return bytes.fromhex(value[2:])
    number = int(value, 16)
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
