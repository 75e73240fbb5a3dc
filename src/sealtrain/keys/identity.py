"""An owner's identity file: one seed that gives the signing key and the sealing key.

``{"name": …, "seed": base64 of 32 bytes, "type": "sealtrain/identity/v1"}``, canonical JSON, mode
0600; with ``"witness": "ml-dsa-44"`` a third key cosigns ledgers. Version 2 has the seed under a
passphrase (``keys.passphrase``). Format: spec/keys.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import field_validator, model_validator

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import make_folder
from sealtrain.base.models import Base64, OwnerName, StrictModel, load_model
from sealtrain.base.ownfiles import require_own
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid, KeyFileInvalid
from sealtrain.keys.derive import KEY_BYTES, derive
from sealtrain.keys.keyfile import read_secret_file, write_secret_file
from sealtrain.keys.passphrase import (
    COST,
    PASSPHRASES,
    SALT_BYTES,
    check_cost,
    lock_seed,
    unlock_seed,
)
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.sealing.stanza import Stanza, find_stanza, unwrap_for_owner
from sealtrain.signing.cosignature import CosignSigner
from sealtrain.signing.dsse import Ed25519Signer
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.ml_dsa import MlDsa44Signer

MAX_IDENTITY_BYTES = 4096
TYPE = "sealtrain/identity/v1"
TYPE_LOCKED = "sealtrain/identity/v2"


class _Scrypt(StrictModel):
    log_n: int
    salt: Base64


class _IdentityFile(StrictModel):
    type: Literal["sealtrain/identity/v1", "sealtrain/identity/v2"]
    scrypt: _Scrypt | None = None
    name: OwnerName
    seed: Base64
    witness: Literal["ml-dsa-44"] | None = None

    @field_validator("witness")
    @classmethod
    def _check_kind(cls, kind: str | None) -> str:
        if kind is None:
            raise ValueError("leave it out where there is none")
        return kind

    @model_validator(mode="after")
    def _passphrase_by_version(self) -> Self:
        if (self.type == TYPE_LOCKED) != (self.scrypt is not None):
            raise ValueError("version 2 has scrypt, version 1 has not")
        return self


class Identity:
    """An owner, private half.

    Attributes:
        name: The owner's name.
        signer: Signs approvals and dataset manifests.
        sealing: Opens what was sealed to this owner.
        witness: Cosigns ledgers: an ML-DSA-44 key, or ``signer`` where there is none.
        public: What the others see.
    """

    __slots__ = ("_seed", "name", "public", "sealing", "signer", "witness")

    def __init__(self, name: str, seed: Secret, *, post_quantum: bool = False) -> None:
        """Derive the keys from a seed.

        Args:
            name: ``[a-z0-9][a-z0-9-]{0,62}``.
            seed: 32 secret random bytes.
            post_quantum: Cosign ledgers with an ML-DSA-44 key.

        Raises:
            KeyFileInvalid: The name or the seed has another form.
        """
        if len(seed) != KEY_BYTES:
            raise KeyFileInvalid("seed has the wrong length", got=len(seed), expected=KEY_BYTES)
        signing = derive(seed, "identity-signing")
        self.name = name
        self.signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(signing.reveal()))
        self.sealing = HpkePrivateKey(derive(seed, "identity-sealing"))
        quantum = MlDsa44Signer(derive(seed, "identity-witness")) if post_quantum else None
        self.witness: CosignSigner = quantum or self.signer
        self.public = PublicIdentity.of(
            name,
            signing_key=self.signer.public,
            sealing_key=self.sealing.public.raw,
            witness_key=None if quantum is None else quantum.public,
        )
        self._seed = seed

    def unwrap(self, dataset_id: str, stanzas: Sequence[Stanza]) -> DataKey:
        """The data key that a header's stanzas wrap for this owner.

        Args:
            dataset_id: Of the dataset, or the run whose model it is: 32 hex digits.
            stanzas: Of the header.

        Raises:
            NoStanza: None is for this owner.
            WrongKey: Another dataset, or altered bytes.
        """
        owner_id = self.public.owner_id
        mine = find_stanza(stanzas, kind="owner", recipient=owner_id)
        return unwrap_for_owner(
            mine, dataset_id=dataset_id, owner_id=owner_id, private=self.sealing
        )

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, <private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Identity must not be pickled or copied: it holds key material")

    @classmethod
    def generate(
        cls,
        name: str,
        random: Random = os.urandom,
        *,
        post_quantum: bool = False,
    ) -> Self:
        """Make a new identity from ``random`` bytes. Raises ``KeyFileInvalid`` for a bad name."""
        return cls(name, Secret(random(KEY_BYTES)), post_quantum=post_quantum)

    def save(
        self, path: Path, passphrase: Secret | None = None, *, random: Random = os.urandom
    ) -> None:
        """Write the identity file, mode 0600.

        Args:
            path: The file to make.
            passphrase: To lock the seed with.
            random: For the salt.

        Raises:
            AlreadyExists: The file exists; a key is never overwritten.
            KeyFileInvalid: The passphrase is too short or too long.
        """
        document: dict[str, JsonValue] = {"type": TYPE, "name": self.name}
        if self.public.witness_key is not None:
            document["witness"] = "ml-dsa-44"
        if passphrase is None:
            document["seed"] = to_base64(self._seed.reveal())
        else:
            salt = random(SALT_BYTES)
            document |= {"type": TYPE_LOCKED, "scrypt": {"log_n": COST, "salt": to_base64(salt)}}
            data = lock_seed(self._seed, document, passphrase, cost=COST, salt=salt)
            document["seed"] = to_base64(data)
        write_secret_file(path, canonical_json(document) + b"\n")

    def save_pair(self, folder: Path, passphrase: Secret | None = None) -> tuple[Path, Path]:
        """Write the private identity file (0600) and the public one to share, both or none.

        Args:
            folder: Where; made where it is not there.
            passphrase: To lock the seed with.

        Returns:
            ``NAME.identity.json`` and ``NAME.public.json``.

        Raises:
            AlreadyExists, KeyFileInvalid: As ``save``.
        """
        private = folder / f"{self.name}.identity.json"
        public = folder / f"{self.name}.public.json"
        with make_folder(folder):
            self.save(private, passphrase)
            try:
                self.public.save(public)
            except BaseException:
                private.unlink()  # nothing is sealed to it yet
                raise
        return private, public

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an identity file; one with a passphrase asks ``PASSPHRASES``.

        Raises:
            KeyFileInvalid: No such file, readable by others, below a folder that others can write,
                not an identity, or the passphrase is wrong.
        """
        data = read_secret_file(path, max_bytes=MAX_IDENTITY_BYTES)
        require_own(path, KeyFileInvalid, check="key file")
        try:
            value = parse_json(data, max_bytes=MAX_IDENTITY_BYTES, max_depth=2)
            file = load_model(_IdentityFile, value, KeyFileInvalid, "identity file")
            seed = from_base64(file.seed, length=KEY_BYTES + (0 if file.scrypt is None else 16))
            salt = b"" if file.scrypt is None else from_base64(file.scrypt.salt, length=SALT_BYTES)
        except DataInvalid:
            # Without "from": the cause could quote what the file holds.
            raise KeyFileInvalid(f"{path} is not an identity file", check="key file") from None
        opened = Secret(seed)
        if file.scrypt is not None:
            check_cost(file.scrypt.log_n)  # before a person is asked
            head = file.model_dump(exclude={"seed"}, exclude_none=True)
            opened = unlock_seed(
                seed, head, PASSPHRASES.of(path), cost=file.scrypt.log_n, salt=salt
            )
        return cls(file.name, opened, post_quantum=file.witness is not None)
