"""What a broker is called: by the key that signs its receipts and its ledger.

See ``spec/key-release.md`` §2. A lock names brokers so, and so do stanzas, receipts and requests.
"""

from __future__ import annotations

from sealtrain.base.digests import sha256_hex

__all__ = ["broker_id"]


def broker_id(signing_key: bytes) -> str:
    """Id of the broker with this signing key, 64 hex digits.

    Args:
        signing_key: Raw Ed25519 public key, 32 bytes.
    """
    return sha256_hex(b"sealtrain/broker/v1:" + signing_key)
