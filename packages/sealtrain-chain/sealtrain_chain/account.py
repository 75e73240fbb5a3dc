"""Ethereum accounts of owners and of the payer of a transaction.

A key file is one of two, mode 0600 (``keys.keyfile``): 64 hex digits, or a keystore of version 3
with the password in a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid, KeyFileInvalid, SignatureInvalid
from sealtrain_chain.proof import require_extra

if TYPE_CHECKING:
    from eth_account.messages import SignableMessage
    from eth_account.signers.local import LocalAccount

    from sealtrain.consortium.chainfile import ChainFile

_MAX_BYTES = 16 << 10
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


def load_account(path: Path, password: Path | None = None) -> LocalAccount:
    """The account of a key file.

    Args:
        path: The key file.
        password: File with the password of a keystore; its line end does not count.

    Raises:
        KeyFileInvalid: Not such a file, readable by others, or another password.
        ExtraMissing: The ``chain`` extra is not installed.
    """
    require_extra()
    from eth_account import Account

    from sealtrain.base.ownfiles import require_own
    from sealtrain.keys.keyfile import read_secret_file

    data = read_secret_file(path, max_bytes=_MAX_BYTES).strip()
    require_own(path, KeyFileInvalid, check="key file")
    if data.startswith(b"{"):
        if password is None:
            raise _odd(path, "it is a keystore and no password file was given")
        try:
            secret = read_secret_file(password, max_bytes=4096).decode().rstrip("\r\n")
            require_own(password, KeyFileInvalid, check="key file")
            keystore: Any = parse_json(data)
            data = bytes(Account.decrypt(keystore, secret)).hex().encode()
        except (DataInvalid, ValueError, TypeError, KeyError, NotImplementedError):
            raise _odd(path, "the keystore does not open with this password") from None
    digits = data.removeprefix(b"0x").decode("ascii", "replace")
    if len(digits) != 64 or set(digits.lower()) - set("0123456789abcdef"):
        raise _odd(path, "it is neither 64 hex digits nor a keystore")
    try:
        account: LocalAccount = Account.from_key(bytes.fromhex(digits))
    except Exception:  # the library's own words could hold the key
        raise _odd(path, "it holds no key of this curve") from None
    return account


def address(account: LocalAccount) -> str:
    """Its address in its written form."""
    return str(account.address).lower()


def sign_message(account: LocalAccount, message: SignableMessage) -> str:
    """Signature of a typed message, 130 hex digits."""
    return bytes(account.sign_message(message).signature).hex()


def name_signer(
    chain: ChainFile, named: str, message: SignableMessage, signature: str, *, what: str
) -> str:
    """Name of the owner who signed a typed message.

    Args:
        chain: Whose owners may sign.
        named: Address that the document names as signer.
        message: As ``build_typed`` makes it.
        signature: 130 hex digits.
        what: What was signed, one word.

    Raises:
        SignatureInvalid: The chain file has no owner with that address, or it did not sign.
    """
    owner = chain.owner_of(named)
    if owner is None:
        raise SignatureInvalid(
            f"the {what} is not signed by an owner in the chain file",
            check="chain owner",
            got=named,
            expected=", ".join(chain.owners),
        )
    signer = recover_signer(message, signature)
    if signer != named:
        raise SignatureInvalid(
            f"the {what} is not signed by the owner that it names",
            check="chain signature",
            owner=owner,
            got=signer,
            expected=named,
        )
    return owner


def recover_signer(message: SignableMessage, signature: str) -> str:
    """Address that signed a typed message.

    Args:
        message: As ``build_typed`` makes it.
        signature: 130 hex digits.

    Raises:
        SignatureInvalid: Not in its one form (low s, v 27 or 28), or it leads to no key.
    """
    from eth_account import Account

    raw = bytes.fromhex(signature)
    if len(raw) != 65 or raw[64] not in (27, 28) or int.from_bytes(raw[32:64]) > _HALF_ORDER:
        raise SignatureInvalid(
            "the signature is not in its one form (65 bytes, low s, v 27 or 28)",
            check="chain signature",
        )
    try:
        return str(Account.recover_message(message, signature=raw)).lower()
    except Exception as error:  # the libraries below raise many kinds on a point of no curve
        raise SignatureInvalid(
            "the signature leads to no key", check="chain signature", got=type(error).__name__
        ) from None


def build_typed(
    domain: dict[str, Any], name: str, fields: dict[str, str], message: dict[str, Any]
) -> SignableMessage:
    """An EIP-712 message of one struct.

    Args:
        name: Of the struct.
        fields: Name → Solidity type, in their order.
        message: Values.
    """
    require_extra()
    from eth_account.messages import encode_typed_data

    types = {name: [{"name": field, "type": kind} for field, kind in fields.items()]}
    return encode_typed_data(domain_data=domain, message_types=types, message_data=message)


def _odd(path: Path, why: str) -> KeyFileInvalid:
    return KeyFileInvalid(f"{path} holds no Ethereum key: {why}", check="key file")
