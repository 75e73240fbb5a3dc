"""Digests of what a run's sealed outputs hold, as one of their recipients can see it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sealtrain.keys.identity import Identity
from sealtrain.records.statement import Subject
from sealtrain.sealing.file import open_file, read_header
from sealtrain.sealing.stanza import find_stanza, unwrap_for_owner

__all__ = ["opened_digests"]

_PIECE = 1 << 20


def opened_digests(folder: Path, subjects: Sequence[Subject], me: Identity) -> dict[str, str]:
    """SHA-256 of every output in the clear, by the name that opening gives it.

    Args:
        folder: Where the sealed outputs lie; their digests were compared with the manifest before.
        subjects: Of the manifest.
        me: A recipient.

    Raises:
        NoStanza: The outputs are not sealed to ``me``.
        SealRefused: A file does not open.
    """
    digests = {}
    for subject in subjects:
        path = folder / subject.name
        header = read_header(path)
        stanza = find_stanza(header.stanzas, kind="owner", recipient=me.public.owner_id)
        key = unwrap_for_owner(
            stanza,
            dataset_id=header.dataset_id,
            owner_id=me.public.owner_id,
            private=me.sealing,
        )
        seen = hashlib.sha256()
        with open_file(path, key) as content:
            while piece := content.read(_PIECE):
                seen.update(piece)
        inner = subject.name.split("/", 1)[-1]
        digests[inner.removesuffix(".sealed")] = seen.hexdigest()
    return digests
