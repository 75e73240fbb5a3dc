"""A pytest plugin (``-p record_examinations``): what is examined in the tests is kept on disk.

``EXAMINATIONS`` names an empty folder. Each manifest that a test has verified lies there once with
the trust file, the time, and a copy of the folder with output files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.manifest import verify
from sealtrain.manifest.trust import parse_trust

_MAX_COPIED = 2 << 20
_FOLDER = Path(os.environ["EXAMINATIONS"]) if "EXAMINATIONS" in os.environ else None
_examine = verify.examine


def _copied(artefacts: Path | None, to: Path) -> str | None:
    """A copy of the output files; none of large ones, which are then not looked at."""
    if artefacts is None or not artefacts.is_dir():
        return None
    if sum(path.stat().st_size for path in artefacts.rglob("*") if path.is_file()) > _MAX_COPIED:
        return None
    shutil.copytree(artefacts, to, symlinks=True, dirs_exist_ok=True)
    return str(to)


def _recording(data: bytes, trust: Any, **named: Any) -> Any:
    report = _examine(data, trust, **named)
    if _FOLDER is not None and len(data) < _MAX_COPIED:
        said = json.dumps([trust.to_dict(), named["now"], str(named["artefacts"])])
        name = hashlib.sha256(data + said.encode()).hexdigest()
        record = {
            "manifest": to_base64(data),
            "trust": trust.to_dict(),
            "now": named["now"],
            "artefacts": _copied(named["artefacts"], _FOLDER / f"{name}.out"),
            "label": os.environ.get("PYTEST_CURRENT_TEST", ""),
        }
        (_FOLDER / f"{name}.json").write_text(json.dumps(record))
    return report


if _FOLDER is not None:
    verify.examine = _recording


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The records, as arguments of ``second_verifier.Question``."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        record["manifest"] = from_base64(record["manifest"])
        record["trust"] = parse_trust(record["trust"])
        record["artefacts"] = record["artefacts"] and Path(record["artefacts"])
        found.append(record)
    return found
