"""What real TDX machines showed, as the vectors keep it, and when it held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from sealtrain.attest.evidence import Collateral
from sealtrain.attest.tdx.parse import canonical_quote


class RealQuote(NamedTuple):
    """Files among the vectors, first and last valid second, evaluation data number."""

    quote: str
    collateral: str
    first: int
    last: int
    number: int


REAL = {
    "tdx": RealQuote("tdx/tdx_quote", "tdx/tdx_quote_collateral.json", 1750329147, 1752919234, 17),
    "gpu-guest": RealQuote(
        "dstack/verifier-fixtures/quote-report.json",
        "tdx/tdx_quote_outdated_collateral.json",
        1771412331,
        1774003274,
        18,
    ),
    "near": RealQuote(
        "tdx/near-gas-test/quote_hex.txt",
        "tdx/near-gas-test/quote_collateral.json",
        1756798919,
        1759388630,
        17,
    ),
}


def real_quote(shared: Path, name: str) -> bytes:
    path = shared / "vectors" / name
    if path.suffix == ".json":
        raw = bytes.fromhex(json.loads(path.read_text())["quote"])
    elif path.suffix in (".txt", ".hex"):
        raw = bytes.fromhex(path.read_text().strip())
    else:
        raw = path.read_bytes()
    return canonical_quote(raw)


def real_collateral(shared: Path, name: str) -> Collateral:
    return Collateral.from_dict(json.loads((shared / "vectors" / name).read_text()))
