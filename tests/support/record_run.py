"""Write ``vectors/manifest/run.json``: a whole manifest with its trust file and output files.

Unlike all other vectors it is recorded: a simulated run of the tests, made by sealtrain itself.
Sealing draws random keys, so another recording has other bytes. Run ``python record_run.py`` in
``tests/support``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from manifest_world import NOW, make_world

from sealtrain.base.encoding import to_base64

OUT = Path(__file__).resolve().parents[2] / "vectors/manifest/run.json"


def main() -> None:
    """Record one run."""
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        files = sorted(path for path in world.artefacts.rglob("*") if path.is_file())
        document = {
            "about": "recorded from a simulated run of sealtrain, not made by another program",
            "now": NOW,
            "trust": json.loads(json.dumps(world.trust().to_dict())),
            "manifest": world.manifest().decode(),
            "files": {
                path.relative_to(world.artefacts).as_posix(): to_base64(path.read_bytes())
                for path in files
            },
            "cases": [
                {"name": "the run as it was", "outcome": "ok"},
                {
                    "name": "a file with a changed bit",
                    "changed": "model/model.safetensors.sealed",
                    "outcome": "artefacts subject-mismatch",
                },
                {
                    "name": "another recipe is trusted",
                    "trust": {"recipe_hash": "00" * 32},
                    "outcome": "trust trust-mismatch",
                },
                {
                    "name": "a simulator is refused",
                    "trust": {"simulated": "refuse"},
                    "outcome": "quote simulated-evidence",
                },
            ],
        }
    OUT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
