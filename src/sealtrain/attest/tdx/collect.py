"""Collateral by URI. Only ``file:`` so far: a guest or a broker reads what was fetched for it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from sealtrain.attest.evidence import Collateral
from sealtrain.base.canonical import parse_json
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid, TrustInvalid

__all__ = ["load_collateral"]

MAX_COLLATERAL_BYTES = 8 << 20


def load_collateral(uri: str) -> Collateral:
    """Read collateral.

    Args:
        uri: ``file:PATH`` or ``file://PATH`` of a JSON document with DCAP's nine fields.

    Raises:
        TrustInvalid: Another scheme, no such file, or not JSON.
        EvidenceMalformed: The document is not collateral.
    """
    scheme, colon, rest = uri.partition(":")
    if scheme != "file" or not colon or not rest:
        raise TrustInvalid(
            "collateral has an unsupported address",
            check="collateral",
            got=uri,
            expected="file:PATH",
        )
    path = Path(unquote(rest.removeprefix("//")))
    try:
        value = parse_json(read_bounded(path, MAX_COLLATERAL_BYTES), max_depth=8)
    except DataInvalid as error:
        raise TrustInvalid(
            f"collateral cannot be read: {error.message}", check="collateral", hint=error.hint
        ) from error
    return Collateral.from_dict(value)
