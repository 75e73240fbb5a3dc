"""Change the recipients of a dataset without touching its ciphertext.

``rewrap`` writes a new header for ``index.sealed`` and copies its payload and trailer byte for
byte, so every root stays. It stops future releases only: a party that already holds the data key
keeps it. Real revocation is a new data key, that is, sealing again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sealtrain.base.files import atomic_writer
from sealtrain.errors import UsageError
from sealtrain.sealing.chunkreader import Ciphertext
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import INDEX_NAME
from sealtrain.sealing.errors import NoStanza, WrongKey
from sealtrain.sealing.file import read_header
from sealtrain.sealing.header import encode_header, read_header_from
from sealtrain.sealing.places import Folder, file_in
from sealtrain.sealing.stanza import Stanza


def read_stanzas(folder: Folder) -> tuple[str, tuple[Stanza, ...]]:
    """Dataset id and stanzas of a sealed dataset, read without a key: an unverified claim.

    Raises:
        NotSealed, FileTruncated, LimitExceeded, HeaderDamaged: There is no well-formed index.
        DataInvalid: There is no index.
    """
    header = read_header(file_in(folder, INDEX_NAME))
    return header.dataset_id, header.stanzas


def rewrap(
    folder: Path, *, data_key: DataKey, add: Sequence[Stanza] = (), drop: Sequence[Stanza] = ()
) -> None:
    """Add and drop stanzas of a dataset.

    Args:
        folder: ``X.sealed``.
        data_key: Key of the dataset; it proves the present stanzas and authenticates the new ones.
        add: New stanzas; one for a recipient who already has one of its kind replaces it.
        drop: Stanzas that go, as ``read_stanzas`` returned them.

    Raises:
        NoStanza: A stanza to drop is not there.
        UsageError: No stanza would remain.
        NotSealed, LimitExceeded, SealRefused: The index does not open under the key.
    """
    path = folder / INDEX_NAME
    source = Ciphertext(path)
    try:
        header, keys = read_header_from(source.read_at, data_key)
    finally:
        source.close()
    if keys is None:
        raise WrongKey("a key is needed to rewrap")
    for stanza in drop:
        if stanza not in header.stanzas:
            raise NoStanza("stanza to drop is not there", got=stanza.recipient, check="stanza")
    replaced = {(stanza.kind, stanza.recipient) for stanza in add}
    kept = [
        stanza
        for stanza in header.stanzas
        if stanza not in drop and (stanza.kind, stanza.recipient) not in replaced
    ]
    stanzas = [*kept, *add]
    if not stanzas:
        raise UsageError(
            "the dataset would have no recipient left", hint="keep at least the owner's stanza"
        )
    renewed = encode_header(header.core, stanzas, keys)
    with path.open("rb") as old, atomic_writer(path, overwrite=True) as new:
        new.write(renewed)
        old.seek(header.size)
        shutil.copyfileobj(old, new, 1 << 20)
