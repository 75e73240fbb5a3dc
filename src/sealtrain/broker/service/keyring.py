"""The only part of the broker that touches secrets: derives keys, unwraps stanzas, seals answers.

Contract: ``seal_answer`` is called with a ``Permit`` in hand and returns ciphertext for the
guest's ephemeral key; plaintext keys never leave this module. Check 14 of spec/key-release.md §4.2
is here.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import ReleaseReceipt, receipt_digest
from sealtrain.errors import DataInvalid
from sealtrain.keys.derive import derive, recipe_key, signing_key
from sealtrain.release.lease_code import LeaseShown, lease_code, manifest_code, manifest_key
from sealtrain.release.messages import (
    BrokerKey,
    DatasetRequest,
    ReleaseRequest,
    answer_info,
    transcript_digest,
)
from sealtrain.sealing.errors import NoStanza, SealRefused, WrongKey
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import (
    BrokerBinding,
    RecipeBinding,
    Stanza,
    unwrap_for_recipe,
    unwrap_share,
)
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.identity import broker_id

_PAIRS = 256
"""Size of the cache of recipe keys; deriving a key anew gives the same key."""
_PUBLIC_KEYS = 1024
"""Size of the cache of their public halves, of 1.6 KiB each: strangers choose what is in it, so it
is another than that of releases."""
_CHALLENGE_KEYS = 16
_LEASE_KEYS = 1024


class Keyring:
    """Everything derived from one root secret, for one consortium."""

    __slots__ = (
        "_former",
        "_lease_key",
        "_public_key",
        "_recipe_key",
        "challenge_key",
        "former",
        "signer",
    )

    def __init__(self, root: Secret, former: Sequence[Secret] = ()) -> None:
        """Derive everything.

        Args:
            former: Former root secrets, newest first: datasets sealed to them still open.
        """
        self.signer: Ed25519Signer = signing_key(root, "broker")
        """Signs receipts and ledger tree heads."""
        # Deriving a key pair takes longer than using it, and each release uses the same few.
        self._recipe_key = lru_cache(maxsize=_PAIRS)(partial(recipe_key, root))
        self._public_key = lru_cache(maxsize=_PUBLIC_KEYS)(partial(_public_half, root))
        self.challenge_key = lru_cache(maxsize=_CHALLENGE_KEYS)(
            partial(derive, root, "challenge-key")
        )
        """Of challenges: of consortium id, purpose and generation (spec/key-release.md §3)."""
        self._lease_key = lru_cache(maxsize=_LEASE_KEYS)(partial(derive, root, "lease-key"))
        self._former = tuple(Keyring(secret) for secret in former)
        self.former = tuple(keyring.signer for keyring in self._former)
        """Signers of the former root secrets."""

    def public_keys(
        self, consortium: Consortium, *, app_id: str, compose_hash: str
    ) -> tuple[BrokerKey, ...]:
        """The public keys that owners seal to for one recipe, in the consortium's order."""
        return tuple(
            BrokerKey(
                owner=owner.name,
                owner_id=owner.owner_id,
                public_key=self.public_key(
                    owner.owner_id, app_id=app_id, compose_hash=compose_hash
                ),
            )
            for owner in consortium.owners
        )

    def public_key(self, owner_id: str, *, app_id: str, compose_hash: str) -> str:
        """The public key for one recipe that one owner's data, or a run's own model, is sealed to.

        Args:
            owner_id: Of the owner; the consortium's id for models of runs.
            app_id: 40 hex digits.
            compose_hash: 64 hex digits.
        """
        return self._public_key(app_id=app_id, compose_hash=compose_hash, owner_id=owner_id)

    def has_granted(self, shown: LeaseShown) -> bool:
        """Whether a request's head was made by the holder of a lease that was granted here."""
        return any(
            hmac.compare_digest(lease_code(key, shown.digest), shown.code)
            for key in self._lease_keys(shown.lease_id)
        )

    def closes(self, shown: LeaseShown) -> bool:
        """Whether a manifest's head was made under the key that a lease granted here has for it."""
        return any(
            hmac.compare_digest(manifest_code(manifest_key(key), shown.digest), shown.code)
            for key in self._lease_keys(shown.lease_id)
        )

    def _lease_keys(self, lease_id: str) -> tuple[Secret, ...]:
        return tuple(root._lease_key(lease_id) for root in (self, *self._former))

    def seal_answer(
        self,
        request: ReleaseRequest,
        manifests: Mapping[str, DatasetManifest],
        receipt: ReleaseReceipt,
        signed: Envelope,
        *,
        model_of: str | None = None,
    ) -> bytes:
        """Unwrap the keys, or shares, of a request that was decided on and seal them to the guest.

        Args:
            request: The request that ``decide`` permitted.
            manifests: Verified manifest of each dataset in it.
            receipt: Of the decision.
            signed: The signed receipt: the keys are usable only with this envelope.
            model_of: Id of the run whose model's key is asked for too.

        Returns:
            HPKE ciphertext (spec/key-release.md §4.4).

        Raises:
            NoStanza: A stanza is for another recipe, owner or broker.
            WrongKey: A stanza was made for another dataset or key, or altered.
            DatasetMismatch: A stanza is malformed.
            DataInvalid: The guest's public key is malformed.
        """
        guest = HpkePublicKey(from_base64(request.hpke_public_key))
        keys = {
            dataset.dataset_id: to_base64(
                self._unwrap(dataset, request, manifests[dataset.dataset_id]).reveal()
            )
            for dataset in request.datasets
        }
        anchored = receipt.checkpoint
        answer = {
            "keys": keys,
            "latest_checkpoint": None if anchored is None else anchored.to_dict(),
            "lease": receipt.lease.to_dict(),
            "lease_key": to_base64(self._lease_key(receipt.lease.lease_id).reveal()),
            "receipt_digest": receipt_digest(signed),
        }
        if request.continues is not None and model_of is not None:
            answer["model_key"] = to_base64(self._unwrap_model(request, model_of).reveal())
        info = answer_info(transcript_digest(request.transcript()))
        return guest.seal(canonical_json(answer), info=info)

    def _unwrap_model(self, request: ReleaseRequest, run_id: str) -> Secret:
        """The key of the model that an earlier run of the same deployment sealed for its own."""
        binding = RecipeBinding(
            app_id=request.app_id,
            compose_hash=request.compose_hash,
            owner_id=request.consortium_id,
        )
        named = request.continues
        if named is None or named.stanza.kind != "recipe":
            raise DatasetMismatch("the model's stanza is for several brokers", check="model stanza")
        try:
            return self._open_stanza(Stanza.from_dict(named.stanza.to_dict()), run_id, binding)
        except (NoStanza, WrongKey) as error:
            error.check = "model stanza"
            error.hint = "give the guest the outputs of the run before, as that run left them"
            raise
        except (SealRefused, DataInvalid) as error:
            raise DatasetMismatch(
                "the model's stanza is malformed",
                check="model stanza",
                hint="give the guest the outputs of the run before, as that run left them",
            ) from error

    def _unwrap(
        self, asked: DatasetRequest, request: ReleaseRequest, manifest: DatasetManifest
    ) -> Secret:
        binding = RecipeBinding(
            app_id=request.app_id, compose_hash=request.compose_hash, owner_id=manifest.owner_id
        )
        try:
            return self._open_stanza(
                Stanza.from_dict(asked.stanza.to_dict()), asked.dataset_id, binding
            )
        except (NoStanza, WrongKey) as error:
            error.owner = manifest.owner
            error.check = "stanza"
            error.hint = "give the guest the folder that the owner sealed for this recipe"
            raise
        except (SealRefused, DataInvalid) as error:
            raise DatasetMismatch(
                "the dataset's stanza is malformed",
                check="stanza",
                owner=manifest.owner,
                hint="give the guest the folder that the owner sealed for this recipe",
            ) from error

    def _open_stanza(self, stanza: Stanza, dataset_id: str, binding: RecipeBinding) -> Secret:
        """Unwrap by the current root secret, or else by a former one."""
        private = self._recipe_key(
            app_id=binding.app_id, compose_hash=binding.compose_hash, owner_id=binding.owner_id
        )
        mine = BrokerBinding.of(binding, broker_id(self.signer.public))
        try:
            if stanza.kind == "share":
                return unwrap_share(stanza, dataset_id=dataset_id, binding=mine, private=private)
            return unwrap_for_recipe(stanza, dataset_id=dataset_id, binding=mine, private=private)
        except (NoStanza, WrongKey):
            for keyring in self._former:
                with suppress(NoStanza, WrongKey):
                    return keyring._open_stanza(stanza, dataset_id, binding)
            raise


def _public_half(root: Secret, *, app_id: str, compose_hash: str, owner_id: str) -> str:
    """Base64 of an owner's public key for one recipe."""
    private = recipe_key(root, app_id=app_id, compose_hash=compose_hash, owner_id=owner_id)
    return to_base64(private.public.raw)
