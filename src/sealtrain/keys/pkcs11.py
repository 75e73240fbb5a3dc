"""A root secret computed inside a hardware security module, by a key that never leaves it.

The secret is HMAC-SHA-256 by a generic secret key of the token over a fixed label (spec/keys.md
§4): a token that computes it once for a holder of the PIN gives away this secret, never its key.
Which token, key, library and PIN is told by a PKCS #11 URI (RFC 7512), of which four attributes are
known and all are needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from sealtrain.base.extras import extra_missing
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyFileInvalid, KmsAnswerInvalid, KmsUnreachable, UsageError
from sealtrain.keys.derive import KEY_BYTES
from sealtrain.keys.keyfile import read_secret_file

FORM: Final = "pkcs11:token=TOKEN;object=KEY?module-path=LIBRARY&pin-source=file:PATH"
LABEL: Final = b"sealtrain/broker-root/v1"
_MAX_PIN_BYTES: Final = 256
_ATTRIBUTE: Final = re.compile(r"([a-z-]+)=((?:[A-Za-z0-9._~:/\[\]@!$'()*+,=-]|%[0-9A-Fa-f]{2})+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKey:
    """Which key of which token.

    Attributes:
        token: Label of the token.
        key: Label of a generic secret key in it.
        library: Path of the module that talks to it.
        pin: File of mode 0600 with the user's PIN, and one newline at most.
    """

    token: str
    key: str
    library: Path
    pin: Path


def parse_address(rest: str) -> TokenKey:
    """Read what follows ``pkcs11:``.

    Raises:
        UsageError: Another form, or another attribute than the four.
    """
    path, _, query = rest.partition("?")
    found = [_ATTRIBUTE.fullmatch(part) for part in (*path.split(";"), *query.split("&"))]
    try:
        pairs = [
            (match[1], unquote_to_bytes(match[2]).decode()) for match in found if match is not None
        ]
    except UnicodeDecodeError:
        pairs = []
    names = [name for name, _ in pairs]
    attributes = dict(pairs)
    if (
        None in found
        or set(names[: path.count(";") + 1]) != {"token", "object"}
        or sorted(names) != ["module-path", "object", "pin-source", "token"]
        or not attributes["pin-source"].startswith("file:")
        or any("\0" in value for value in attributes.values())
    ):
        raise UsageError(
            "not a pkcs11: URI", check="root secret", expected=FORM, hint="see RFC 7512"
        )
    library = Path(attributes["module-path"])
    if not library.is_absolute():
        raise UsageError(
            "a pkcs11: URI names its library by an absolute path",
            check="root secret",
            got=str(library)[:120],
            expected=FORM,
        )
    pin = attributes["pin-source"].removeprefix("file:").removeprefix("//")
    return TokenKey(
        token=attributes["token"], key=attributes["object"], library=library, pin=Path(pin)
    )


def compute(address: TokenKey) -> Secret:
    """Have the token compute the secret.

    Returns:
        32 bytes.

    Raises:
        ExtraMissing: The package for PKCS #11 is not installed.
        KeyFileInvalid: The PIN's file is absent or open to others, or the token refuses the PIN.
        KmsUnreachable: The library cannot be loaded, the token is not there, or it fails.
        KmsAnswerInvalid: It has no such key, or one that could leave it.
    """
    try:
        import pkcs11
        from pkcs11 import exceptions
    except ImportError as error:
        raise extra_missing("a root secret in a hardware module", "pkcs11", error) from None
    pin = read_secret_file(address.pin, max_bytes=_MAX_PIN_BYTES).removesuffix(b"\n")
    try:
        token = pkcs11.lib(str(address.library)).get_token(token_label=address.token)
        with token.open(user_pin=pin.decode()) as session:
            computed = _hmac(session, address.key)
    except (exceptions.PinIncorrect, exceptions.PinLenRange, exceptions.PinInvalid):
        raise KeyFileInvalid(
            "the token refuses the PIN",
            check="root secret",
            hint="check the PIN file: a token locks itself after a few wrong PINs",
        ) from None
    except exceptions.PinLocked:
        raise KeyFileInvalid("the token is locked", check="root secret") from None
    except UnicodeDecodeError:
        raise KeyFileInvalid("the PIN is not UTF-8", check="root secret") from None
    except (pkcs11.PKCS11Error, RuntimeError, OSError) as error:
        raise KmsUnreachable(
            f"the token {address.token} does not answer",
            check="root secret",
            got=type(error).__name__,
            hint="check the library's path, the token's label and the module's own settings",
        ) from None
    if len(computed) != KEY_BYTES:
        raise KmsAnswerInvalid(
            "the token computed something else than HMAC-SHA-256",
            check="root secret",
            got=f"{len(computed)} bytes",
            expected=f"{KEY_BYTES}",
        )
    return Secret(computed)


def _hmac(session: Any, label: str) -> bytes:
    from pkcs11 import Attribute, Mechanism, ObjectClass

    wanted = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.LABEL: label}
    keys = list(session.get_objects(wanted))
    if len(keys) != 1:
        raise KmsAnswerInvalid(
            "the token has no such key, or several",
            check="root secret",
            got=f"{len(keys)}",
            expected=f"one secret key labelled {label}",
        )
    (key,) = keys
    if key[Attribute.EXTRACTABLE] or not key[Attribute.SENSITIVE]:
        raise KmsAnswerInvalid(
            "the token would hand out this key",
            check="root secret",
            expected="a key that is sensitive and cannot be extracted",
            hint="make it in the token: pkcs11-tool --keygen --key-type GENERIC:32 --sensitive",
        )
    return bytes(key.sign(LABEL, mechanism=Mechanism.SHA256_HMAC))
