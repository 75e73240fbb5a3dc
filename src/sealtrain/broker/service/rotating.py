"""Replace a broker's root secret (spec/ledger.md §10, spec/keys.md §5)."""

from __future__ import annotations

from pathlib import Path

from sealtrain.base.secret import Secret
from sealtrain.errors import ConfigError, UsageError
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.backend import Place
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.rotation import KIND, rotation_entry, sign_rotation


def rotate_key(where: Place, origin: str, *, old: Secret, new: Secret, now: int) -> int:
    """Write into the ledger that its key follows from another root secret.

    A broker that runs meanwhile signs with the old key until its operator restarts it.

    Args:
        where: The ledger, which must be there.
        old: The root secret that signs it now.
        new: The root secret to replace it.
        now: Seconds since the epoch.

    Returns:
        Index of the entry.

    Raises:
        UsageError: Both are the same.
        ConfigError: There is no ledger.
        SignatureInvalid: The ledger is not signed by the old one, or was rotated before.
        LedgerInconsistent: It is of another consortium, or was changed from outside.
        Unreachable: It cannot be written; it is as before.
    """
    before, after = signing_key(old, "broker"), signing_key(new, "broker")
    if before.public == after.public:
        raise UsageError("the new root secret is the old one", check="root secret")
    if isinstance(where, Path) and not where.is_file():
        raise ConfigError(
            f"there is no ledger at {where}",
            check="broker state",
            hint="give the folder of --state; a broker that never ran has nothing to rotate",
        )
    with Ledger.open(where, origin=origin, signer=before, clock=lambda: now) as ledger:
        envelope = sign_rotation(origin, old=before, new=after, now=now)
        return ledger.append(KIND, rotation_entry(envelope))
