"""Keep the shipped contract, and the tests' stand-ins, in step with their Solidity sources.

Usage: ``python tools/contracts.py NODE_MODULES [--check]``, where NODE_MODULES holds ``solc`` of
the version that ``COMPILER`` names (``npm install --ignore-scripts solc@0.8.24``).

With ``--check`` nothing is written; files that differ exit 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
COMPILER = "0.8.24"
PLACES = {
    REPOSITORY / "packages/sealtrain-chain/sealtrain_chain/OwnersAppAuth.json": ["OwnersAppAuth"],
    REPOSITORY / "tests/support/contracts/stand_ins.json": [
        "KmsStandIn",
        "AppStandIn",
        "ProxyStandIn",
    ],
}


def build(node_modules: Path) -> dict[Path, str]:
    """What each file must hold, compiled anew.

    Raises:
        CalledProcessError: Node or the compiler failed.
    """
    script = REPOSITORY / "deploy/contracts/build.cjs"
    out = subprocess.run(  # noqa: S603  # our own script
        ["node", str(script), str(node_modules)],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    contracts: dict[str, Any] = json.loads(out)
    return {
        place: json.dumps({name: contracts[name] for name in names}, sort_keys=True) + "\n"
        for place, names in PLACES.items()
    }


def main(arguments: list[str]) -> int:
    """Write or compare; returns the exit code."""
    check = "--check" in arguments
    [node_modules] = [argument for argument in arguments if argument != "--check"]
    stale = []
    for place, text in build(Path(node_modules)).items():
        if place.is_file() and place.read_text("utf-8") == text:
            continue
        if check:
            stale.append(place.name)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run tools/contracts.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
