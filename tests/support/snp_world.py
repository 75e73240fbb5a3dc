"""What real SEV-SNP machines showed, as the vectors keep it."""

from __future__ import annotations

import base64
import re
from pathlib import Path


def real_chain(shared: Path, name: str, root: str) -> tuple[bytes, ...]:
    """The machine's leaf under the authorities that AMD publishes for ``root``."""
    folder = shared / "vectors" / "sev-snp"
    text = (folder / "roots" / f"ask_ark_{root}.pem").read_text()
    blocks = re.findall(r"BEGIN CERTIFICATE-----(.*?)-----END", text, re.DOTALL)
    leaf = (folder / f"{name}.cert.der").read_bytes()
    return (leaf, *(base64.b64decode(block) for block in blocks))


def real_report(shared: Path, name: str) -> bytes:
    return (shared / "vectors" / "sev-snp" / f"{name}.report.bin").read_bytes()
