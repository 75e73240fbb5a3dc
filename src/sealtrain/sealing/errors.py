"""Errors of sealed files and datasets."""

from __future__ import annotations

from sealtrain.errors import DataInvalid, Refused


class SealRefused(Refused):
    """A sealed file does not open."""


class HeaderDamaged(SealRefused):
    """The header of a sealed file fails authentication or is malformed."""


class ChunkDamaged(SealRefused):
    """A chunk of ciphertext fails authentication; none of its plaintext was released."""


class FileTruncated(SealRefused):
    """A sealed file ends before its final chunk."""


class WrongKey(SealRefused):
    """The key does not open this file."""


class WrongContext(SealRefused):
    """The file is genuine, but it is another one than was requested."""


class NoStanza(SealRefused):
    """No stanza of the header is for this recipient."""


class RootMismatch(SealRefused):
    """The ciphertext does not lead to the signed root of the hash tree."""


class CheckpointRefused(Refused):
    """A checkpoint, or what a party keeps of its run, is another run's, older or altered."""


class NotSealed(DataInvalid):
    """The file or folder is not in sealtrain's format."""


class SchemaMismatch(DataInvalid):
    """Columns are missing or have other types than the recipe asks for."""


class RecordInvalid(DataInvalid):
    """A record cannot be read; the error names its position, never its content."""
