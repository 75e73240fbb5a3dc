"""Passkeys that an owner enrolled with the agent, and what one of them must have signed.

See ``spec/console.md`` §3. A passkey's answer counts when

1. it is by an enrolled passkey,
2. its challenge is that of the very decision,
3. it was made for this relying party, on a page of this console's origin,
4. the person was verified by the authenticator, and
5. the signature verifies, and its counter did not go back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Base64, StrictModel, load_model
from sealtrain.base.ownfiles import require_own
from sealtrain.errors import KeyFileInvalid
from sealtrain_console.web.errors import PasskeyInvalid

RP_ID: Final = "localhost"
_LABEL: Final = b"sealtrain/console/v1:"
_MAX_BYTES: Final = 64 << 10
_MOST: Final = 16


class _Passkey(StrictModel):
    """An enrolled passkey; nothing here is secret."""

    id: Base64 = Field(max_length=2048)
    public_key: Base64 = Field(max_length=2048)
    count: int = Field(ge=0, lt=1 << 32)


class _PasskeyFile(StrictModel):
    version: int = Field(ge=1, le=1)
    passkeys: tuple[_Passkey, ...] = Field(max_length=_MOST)


def passkey_file(identity: Path) -> Path:
    """Where an owner's passkeys are listed: beside its identity file."""
    return identity.with_name(f"{identity.name}.passkeys.json")


def code_of(credential: dict[str, Any]) -> str:
    """Eight digits that tell a new passkey from another: page and terminal show the same.

    Raises:
        PasskeyInvalid: It has no id.
    """
    said = credential.get("id")
    if not isinstance(said, str) or not said:
        raise PasskeyInvalid("the passkey has no id", check="passkey")
    return hashlib.sha256(said.encode()).hexdigest()[:8]


def challenge_of(payload: bytes) -> bytes:
    """The challenge for a decision, 32 bytes: of the bytes that the owner's key will sign."""
    return hashlib.sha256(_LABEL + payload).digest()


@dataclass(kw_only=True)
class Passkeys:
    """The passkeys of one owner, for one console.

    Attributes:
        file: Where they are listed.
        origin: Of the console's pages, as ``http://localhost:8600``.
    """

    file: Path
    origin: str

    def _load(self) -> tuple[_Passkey, ...]:
        if not self.file.exists():
            return ()
        require_own(self.file, KeyFileInvalid, check="key file")
        document = parse_json(read_bounded(self.file, _MAX_BYTES))
        return load_model(_PasskeyFile, document, KeyFileInvalid, self.file.name).passkeys

    def _save(self, passkeys: tuple[_Passkey, ...]) -> None:
        kept = _PasskeyFile(version=1, passkeys=passkeys)
        atomic_write(self.file, canonical_json(kept.to_dict()), mode=0o600, overwrite=True)

    @property
    def ids(self) -> list[str]:
        """Ids of the enrolled passkeys, base64url as browsers take them.

        Raises:
            KeyFileInvalid: The list is damaged.
        """
        return [url_text(from_base64(passkey.id)) for passkey in self._load()]

    def options(self, owner: str, challenge: bytes) -> dict[str, Any]:
        """What a browser needs to make a passkey."""
        from webauthn import generate_registration_options, options_to_json
        from webauthn.helpers.cose import COSEAlgorithmIdentifier
        from webauthn.helpers.structs import (
            AuthenticatorSelectionCriteria,
            PublicKeyCredentialDescriptor,
            ResidentKeyRequirement,
            UserVerificationRequirement,
        )

        options = generate_registration_options(
            rp_id=RP_ID,
            rp_name="sealtrain console",
            user_name=owner,
            challenge=challenge,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.DISCOURAGED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[
                PublicKeyCredentialDescriptor(id=from_base64(passkey.id))
                for passkey in self._load()
            ],
            supported_pub_key_algs=[COSEAlgorithmIdentifier.ECDSA_SHA_256],
        )
        found: dict[str, Any] = json.loads(options_to_json(options))
        return found

    def enroll(self, credential: dict[str, Any], challenge: bytes) -> str:
        """Add a passkey; returns its id.

        Raises:
            PasskeyInvalid: It is not the answer to this challenge on this console.
        """
        from webauthn import verify_registration_response
        from webauthn.helpers.cose import COSEAlgorithmIdentifier

        passkeys = self._load()
        if len(passkeys) >= _MOST:
            raise PasskeyInvalid("no further passkey is enrolled", expected=f"at most {_MOST}")
        try:
            found = verify_registration_response(
                credential=credential,
                expected_challenge=challenge,
                expected_rp_id=RP_ID,
                expected_origin=self.origin,
                require_user_verification=True,
                supported_pub_key_algs=[COSEAlgorithmIdentifier.ECDSA_SHA_256],
            )
        except Exception as error:  # the library raises many; none of its words is shown
            raise _invalid(error) from error
        added = _Passkey(
            id=to_base64(found.credential_id),
            public_key=to_base64(found.credential_public_key),
            count=found.sign_count,
        )
        self._save((*passkeys, added))
        return url_text(found.credential_id)

    def require(self, credential: dict[str, Any], payload: bytes) -> None:
        """Return if an enrolled passkey signed a decision. Checks 1 to 5.

        Args:
            credential: The browser's answer.
            payload: The decision, as the owner's key will sign it.

        Raises:
            PasskeyInvalid: It did not.
        """
        from webauthn import verify_authentication_response

        passkeys = self._load()
        said = credential.get("id")
        passkey = next(
            (candidate for candidate in passkeys if url_text(from_base64(candidate.id)) == said),
            None,
        )
        if passkey is None:  # (1)
            raise PasskeyInvalid(
                "this passkey is not enrolled with the agent",
                check="passkey",
                hint="enroll it: sealtrain console agent --enroll",
            )
        try:
            found = verify_authentication_response(  # (2) (3) (4) (5)
                credential=credential,
                expected_challenge=challenge_of(payload),
                expected_rp_id=RP_ID,
                expected_origin=self.origin,
                credential_public_key=from_base64(passkey.public_key),
                credential_current_sign_count=passkey.count,
                require_user_verification=True,
            )
        except Exception as error:  # as above
            raise _invalid(error) from error
        used = passkey.model_copy(update={"count": found.new_sign_count})
        self._save(tuple(used if known is passkey else known for known in passkeys))


def _invalid(error: Exception) -> PasskeyInvalid:
    return PasskeyInvalid(
        "the passkey's answer does not hold for this decision on this console",
        check="passkey",
        got=type(error).__name__,
        expected="an answer to the agent's challenge, on the page of its console",
        hint="press the button again on the console that the agent was started for",
    )


def url_text(data: bytes) -> str:
    """base64url without padding, as WebAuthn writes ids and challenges."""
    return to_base64(data).replace("+", "-").replace("/", "_").rstrip("=")
