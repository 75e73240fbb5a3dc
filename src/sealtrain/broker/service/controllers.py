"""Who may submit runs and who may run them, besides the owners (spec/run-control.md §1).

1. a name is one of an owner's form, a key a good Ed25519 key,
2. at most 64 submitters and 64 runners,
3. no two of the owners, submitters and runners share a name or a key, except a submitter and a
   runner of one name and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from sealtrain.base.encoding import from_base64
from sealtrain.base.filenames import OWNER_NAME
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.signing.ed25519 import check_public_key, key_id

SignerRole = Literal["owner", "submitter", "runner"]
_MOST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerKey:
    """A key that may sign something, and what it is called.

    Attributes:
        name: Of an owner, or as the operator configured it.
        key: Raw Ed25519 key, 32 bytes.
        owner: Whether it is an owner's.
    """

    name: str
    key: bytes
    owner: bool


class Controllers:
    """Keys by key id, for each role. Immutable."""

    def __init__(
        self,
        owners: Mapping[str, ControllerKey],
        submitters: Mapping[str, ControllerKey],
        runners: Mapping[str, ControllerKey],
    ) -> None:
        self._of: Final[Mapping[SignerRole, Mapping[str, ControllerKey]]] = {
            "owner": owners,
            "submitter": {**owners, **submitters},
            "runner": runners,
        }

    @classmethod
    def of(
        cls, consortium: Consortium, submitters: Mapping[str, str], runners: Mapping[str, str]
    ) -> Self:
        """Read what the operator configured.

        Args:
            consortium: Whose owners may submit in any case.
            submitters: Name → key in base64.
            runners: The same.

        Raises:
            UsageError: One of the module's checks fails.
        """
        owners = {
            owner.key_id: ControllerKey(name=owner.name, key=owner.signing_bytes, owner=True)
            for owner in consortium.owners
        }
        listed = {
            what: _read(what, keys)
            for what, keys in (("submitter", submitters), ("runner", runners))
        }
        seen = {signer.name: signer.key for signer in owners.values()}
        for what, keys in listed.items():
            for signer in keys.values():
                _expect_apart(what, signer, seen, owners)
            seen |= {signer.name: signer.key for signer in keys.values()}
        return cls(owners, listed["submitter"], listed["runner"])

    def signers(self, role: SignerRole) -> Mapping[str, ControllerKey]:
        """By key id, who may sign in a role; owners are submitters too."""
        return self._of[role]

    def keys(self, role: SignerRole) -> dict[str, bytes]:
        """Key id → raw key, of ``signers``."""
        return {named: signer.key for named, signer in self._of[role].items()}


def _read(what: str, keys: Mapping[str, str]) -> dict[str, ControllerKey]:
    if len(keys) > _MOST:  # 2.
        raise UsageError(
            f"too many {what}s", check=what, got=len(keys), expected=f"at most {_MOST}"
        )
    found: dict[str, ControllerKey] = {}
    for name, text in keys.items():
        key = _key(what, name, text)  # 1.
        named = key_id(key)
        if named in found:
            raise UsageError(f"two {what}s have one key", check=what, got=name)
        found[named] = ControllerKey(name=name, key=key, owner=False)
    return found


def _expect_apart(
    what: str, signer: ControllerKey, seen: Mapping[str, bytes], owners: Mapping[str, ControllerKey]
) -> None:
    # 3.
    same = [name for name, key in seen.items() if (name == signer.name) != (key == signer.key)]
    if same or key_id(signer.key) in owners:
        raise UsageError(
            f"{what} {signer.name} has the name or key of another",
            check=what,
            got=signer.name,
            expected="a name and a key of its own",
            hint="an owner submits without being listed",
        )


def _key(what: str, name: str, text: str) -> bytes:
    wrong = UsageError(
        f"not a {what}",
        check=what,
        got=f"{name[:80]}={text[:80]}",
        expected="NAME=KEY, the signing_key of a public identity file",
        hint="sealtrain keygen NAME makes an identity",
    )
    if not re.fullmatch(OWNER_NAME, name):
        raise wrong
    try:
        return check_public_key(from_base64(text))
    except DataInvalid:
        raise wrong from None
