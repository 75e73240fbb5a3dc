"""Write the OpenAPI documents that ``sealtrain broker openapi`` prints, from the service itself.

    python tools/openapi_documents.py [--check]

Describing the service takes a second; reading what it was described as does not. With ``--check``
nothing is written; a stale document exits 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sealtrain.broker.http.app import describe_service

FOLDER = Path(__file__).resolve().parents[1] / "src" / "sealtrain" / "broker"
NAMES = {False: "openapi.json", True: "openapi-boot.json"}


def main() -> None:
    """Write both documents, or hold them against the service."""
    stale = []
    for boot_auth, name in NAMES.items():
        text = json.dumps(describe_service(boot_auth=boot_auth), separators=(",", ":")) + "\n"
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, "utf-8")
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(stale)}; run make format")


if __name__ == "__main__":
    main()
