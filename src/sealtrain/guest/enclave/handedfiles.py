"""Files that a parent hands to a broker's enclave, where the measured document names them.

An enclave has no disk, and a broker's document names files of its guest's: the address of its
database, the ciphertext that a KMS opens, collateral. No register covers what the parent hands in
here, so it takes only what its reader checks by itself, and only under the names that the document
gives to such things:

| option of the document | who checks the content |
|---|---|
| ``--database file:…`` | the broker: its ledger is a chain that it signed |
| ``--root-secret awskms:…`` | the KMS opens it for this enclave alone; owners pin the broker's id |
| ``--collateral file:…``, ``--gpu-collateral file:…`` | whoever verifies: vendors signed it |

A root secret of ``file:`` is no such thing: a parent that hands one in would know every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from sealtrain.guest.enclave.plan import KEPT

if TYPE_CHECKING:
    from sealtrain.recipe.document import Frame

MAX_FILES_BYTES: Final = 1 << 20
"""Of the message that holds all of them."""
COLLATERAL: Final = "collateral.json"
"""Name of a broker's collateral, by its document."""
_BROKER: Final = ("broker", "serve")
_TAKEN: Final[Mapping[str, str]] = {
    "--database": "file",
    "--root-secret": "awskms",
    "--collateral": "file",
    "--gpu-collateral": "file",
}
"""Option of the measured command → scheme of a value whose file may be handed in."""


def names_of(frame: Frame) -> frozenset[str]:
    """Names, in the folder that a document's program keeps things in, of what may be handed in.

    Args:
        frame: Of a deployment document; only a broker's names any.
    """
    if frame.words[:2] != _BROKER:
        return frozenset()
    found = set()
    for option, value in zip(frame.words, frame.words[1:], strict=False):
        scheme, colon, rest = value.partition(":")
        path = PurePosixPath(rest.partition("?")[0])
        below = str(path.parent) == KEPT and path.name != ".."
        if colon and below and _TAKEN.get(option) == scheme:
            found.add(path.name)
    return frozenset(found)


def write_message(files: Mapping[str, bytes]) -> bytes:
    """The message with these files, by name."""
    from sealtrain.base.canonical import canonical_json
    from sealtrain.base.encoding import to_base64

    return canonical_json({name: to_base64(data) for name, data in files.items()})


def read_message(data: bytes, names: frozenset[str]) -> dict[str, bytes]:
    """Files of a message, each under a name that the document gives.

    Args:
        data: What the parent sent; at most ``MAX_FILES_BYTES``.
        names: As ``names_of``.

    Raises:
        DataInvalid: Another form, too long, or a name that the document does not give.
    """
    from sealtrain.base.canonical import parse_canonical
    from sealtrain.base.encoding import from_base64
    from sealtrain.errors import DataInvalid

    if len(data) > MAX_FILES_BYTES:
        raise DataInvalid(
            "the files for this enclave are too long",
            check="handed files",
            got=f"more than {MAX_FILES_BYTES} bytes",
        )
    found = parse_canonical(data)
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise DataInvalid("the files for this enclave have another form", check="handed files")
    strange = sorted(set(found) - names)
    if strange:
        raise DataInvalid(
            "a file was handed in that the measured document does not name",
            check="handed files",
            got=", ".join(repr(name[:64]) for name in strange[:4]),
            expected=", ".join(sorted(names)) or "none",
        )
    return {name: from_base64(str(text)) for name, text in found.items()}
