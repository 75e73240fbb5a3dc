"""A passphrase over an identity's seed (spec/keys.md §3.1), and where commands take one from.

The cost is checked before it is paid: a file decides how much memory its reader needs, and a file
may come from elsewhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyFileInvalid

COST: Final = 17
"""log₂ of scrypt's N in files that are written: 128 MiB and about half a second."""
_COSTS: Final = range(15, 19)
"""What a reader accepts: from 32 to 256 MiB."""
SALT_BYTES: Final = 16
_NONCE: Final = bytes(12)
_MAX_BYTES: Final = 1024
_LEAST: Final = 8


@dataclass(slots=True)
class Passphrases:
    """Where this process takes passphrases from; each file's is asked for once.

    Attributes:
        ask: Gives the passphrase of a file.
    """

    ask: Callable[[Path], Secret] | None = None
    _known: dict[Path, Secret] = field(default_factory=dict, repr=False)

    def use(self, ask: Callable[[Path], Secret]) -> None:
        """Take them from here now."""
        self.ask = ask
        self._known.clear()

    def of(self, path: Path) -> Secret:
        """The passphrase of a file.

        Raises:
            KeyFileInvalid: There is nothing to take it from.
        """
        if self.ask is None:
            raise KeyFileInvalid(
                f"{path} has a passphrase",
                check="passphrase",
                expected="a terminal, or --passphrase-file",
            )
        if path not in self._known:
            self._known[path] = self.ask(path)
        return self._known[path]


PASSPHRASES: Final = Passphrases()
"""Of this process."""


def lock_seed(
    seed: Secret, head: Mapping[str, JsonValue], passphrase: Secret, *, cost: int, salt: bytes
) -> bytes:
    """A seed under a passphrase.

    Args:
        seed: What is kept.
        head: The file's other fields, which the result is bound to.
        passphrase: UTF-8, at least 8 characters.
        cost: log₂ of N.
        salt: 16 fresh random bytes.

    Raises:
        KeyFileInvalid: The passphrase is too short or too long.
    """
    text = _normal(passphrase)
    if len(text.decode()) < _LEAST:
        raise KeyFileInvalid(
            "the passphrase is too short", check="passphrase", expected=f"{_LEAST} characters"
        )
    key = _derive(text, cost, salt)
    return AESGCM(key).encrypt(_NONCE, seed.reveal(), canonical_json(dict(head)))


def unlock_seed(
    data: bytes, head: Mapping[str, JsonValue], passphrase: Secret, *, cost: int, salt: bytes
) -> Secret:
    """The seed. Arguments as of ``lock_seed``.

    Raises:
        KeyFileInvalid: The cost is out of bounds, the passphrase is wrong or the file was altered.
    """
    key = _derive(_normal(passphrase), cost, salt)
    try:
        return Secret(AESGCM(key).decrypt(_NONCE, data, canonical_json(dict(head))))
    except InvalidTag:
        raise KeyFileInvalid(
            "the passphrase is wrong, or the identity file was altered", check="passphrase"
        ) from None


def check_cost(cost: int) -> None:
    """Refuse a cost that is too low to protect, or too high to pay.

    Raises:
        KeyFileInvalid: It is out of bounds.
    """
    if cost not in _COSTS:
        raise KeyFileInvalid(
            "the identity file asks for a cost that is not accepted",
            check="cost",
            got=cost,
            expected=f"{_COSTS.start} to {_COSTS.stop - 1}",
        )


def _normal(passphrase: Secret) -> bytes:
    try:
        text = unicodedata.normalize("NFC", passphrase.reveal().decode())
    except UnicodeDecodeError:
        raise KeyFileInvalid("the passphrase is no UTF-8", check="passphrase") from None
    found = text.encode()
    if len(found) > _MAX_BYTES:
        raise KeyFileInvalid(
            "the passphrase is too long", check="passphrase", expected=f"≤ {_MAX_BYTES} bytes"
        )
    return found


def _derive(passphrase: bytes, cost: int, salt: bytes) -> bytes:
    check_cost(cost)
    return Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(passphrase)
