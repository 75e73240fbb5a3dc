"""Where a broker's root secret comes from, by URI.

- ``file:PATH``: 64 hex digits in a file of mode 0600, made once.
- ``dstack:SOCKET?path=PATH``: a key the guest's key provider derives for this app and path.
- ``awskms:FILE?region=…&key=…``: a secret that AWS KMS releases to this attested Nitro enclave.
- ``pkcs11:token=…;object=…?…``: a secret that a key in a hardware module computes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl

from sealtrain.base.encoding import from_hex
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import AlreadyExists, DataInvalid, KeyFileInvalid, UsageError
from sealtrain.keys import pkcs11
from sealtrain.keys.derive import KEY_BYTES
from sealtrain.keys.keyfile import read_secret_file, write_secret_file

DEFAULT_PATH = "sealtrain/broker-root/v1"
PURPOSE = "sealtrain-broker-root"
SCHEMES = (
    "file:PATH",
    "dstack:SOCKET?path=sealtrain/broker-root/v1",
    "awskms:CIPHERTEXT_FILE?region=REGION&key=KEY_ARN",
    pkcs11.FORM,
)


def root_secret(uri: str, *, create: bool = False, random: Random = os.urandom) -> Secret:
    """Fetch the root secret that ``uri`` names.

    Args:
        uri: One of ``SCHEMES``.
        create: For ``file:`` only, make the file when it does not exist.
        random: Source of a new secret.

    Returns:
        32 bytes.

    Raises:
        UsageError: Another scheme or form of URI.
        KeyFileInvalid: The file is absent, open to others or malformed.
        GuestApiUnreachable: The guest's socket or module does not answer.
        KmsUnreachable: AWS KMS or the hardware module does not answer.
        KmsAnswerInvalid: AWS KMS refuses, or its answer does not open as it must; the module has
            no such key, or one that could leave it.
        ExtraMissing: The packages that a scheme needs are not installed.
    """
    scheme, separator, rest = uri.partition(":")
    if separator and scheme == "file":
        return _from_file(_file_path(rest), create, random)
    if separator and scheme == "dstack":
        return _from_dstack(rest)
    if separator and scheme == "awskms":
        from sealtrain.keys.awskms import parse_address, release

        return release(parse_address(rest))
    if separator and scheme == "pkcs11":
        return pkcs11.compute(pkcs11.parse_address(rest))
    raise UsageError(
        "unknown kind of root secret",
        check="root secret",
        got=scheme[:20] if separator else "no scheme",
        expected=" or ".join(SCHEMES),
    )


def anchor_of(uri: str) -> str:
    """What owners pin of a root secret's place; a rotation moves within it.

    A file is whatever the operator puts there. Of a secret that hardware or a service keeps, the
    anchor says which one: another one would hand out secrets that its own operator knows.

    Args:
        uri: One of ``SCHEMES``.

    Raises:
        UsageError: Another scheme.
    """
    scheme, _, rest = uri.partition(":")
    place, _, options = rest.partition("?")
    anchors = {
        "file": "file:",
        "dstack": f"dstack:{place}",
        "awskms": f"awskms:?{options}",
        "pkcs11": uri,
    }
    if scheme not in anchors or not rest:
        raise UsageError(
            "unknown kind of root secret",
            check="root secret",
            got=scheme[:20],
            expected=" or ".join(SCHEMES),
        )
    return anchors[scheme]


def _file_path(rest: str) -> Path:
    if rest.startswith("//"):
        rest = rest.removeprefix("//")
        if not rest.startswith("/"):
            raise UsageError("a file: URI names no host", expected=SCHEMES[0])
    if not rest or "\0" in rest or rest.endswith("/"):
        raise UsageError("a file: URI names no file", expected=SCHEMES[0])
    return Path(rest)


def _from_file(path: Path, create: bool, random: Random) -> Secret:
    if create and not path.exists():
        with suppress(AlreadyExists):  # another process made it first; its secret counts
            write_secret_file(path, random(KEY_BYTES).hex().encode() + b"\n")
    text = read_secret_file(path, max_bytes=2 * KEY_BYTES + 1)
    try:
        return Secret(from_hex(text.decode("ascii").removesuffix("\n"), length=KEY_BYTES))
    except (DataInvalid, UnicodeDecodeError):
        raise KeyFileInvalid(
            f"{path} is not a root secret",
            check="root secret",
            expected=f"{2 * KEY_BYTES} lower-case hex digits",
        ) from None


def _from_dstack(rest: str) -> Secret:
    from sealtrain.attest.dstack.client import DstackClient

    socket, _, query = rest.partition("?")
    try:
        options = parse_qsl(query, strict_parsing=True, keep_blank_values=True) if query else []
    except ValueError:
        options = [("", "")]
    if not socket or [name for name, _ in options] not in ([], ["path"]):
        raise UsageError("not a dstack: URI", check="root secret", expected=SCHEMES[1])
    path = options[0][1] if options else DEFAULT_PATH
    if not path:
        raise UsageError("a dstack: URI with an empty path", expected=SCHEMES[1])
    key = DstackClient(socket).get_key(path, purpose=PURPOSE)
    return Secret(key.reveal())
