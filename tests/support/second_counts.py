"""Write ``docs/reference/second-verifier.md`` from what it plays.

    python tests/support/second_counts.py [--only WORDS]

Plays the tests that put the same questions to both verifiers, some 200,000, and counts where they
disagree (half an hour on two cores). ``--only`` is pytest's ``-k``; the other rows are kept. The
figures are in ``docs/reference/second-verifier.json``; ``--render`` writes the page from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/reference/second-verifier.md"
FIGURES = PAGE.with_suffix(".json")
TESTS = tuple(
    f"tests/integration/test_second_verifier{name}.py" for name in ("", "_negative", "_recipe")
)


def rendered(rows: dict[str, Any]) -> str:
    """The page.

    Args:
        rows: By what was asked: how many, and disagreements.
    """
    table = [f"| {what} | {asked:,} | {differ} |" for what, (asked, differ) in sorted(rows.items())]
    return "\n".join(
        [
            "# Two verifiers, the same questions",
            "",
            "The JavaScript verifier is written from `spec/` alone ([auditor's guide]"
            "(../guides/auditor.md#with-another-program)). Nightly tests put the same",
            "questions to it and to `sealtrain verify`. They disagree where one accepts and the "
            "other does not, or where the first refused check or its",
            "code differs.",
            "",
            "| questions | asked | disagreements |",
            "|---|---:|---:|",
            *table,
            "",
            "Written by `python tests/support/second_counts.py`, which plays them. What the second "
            "verifier never sees is in",
            "[negative cases](negative-cases.md#in-the-second-verifier); rules between fields of a "
            "recipe, which it leaves out, are named in",
            "[test_second_verifier_recipe](../../tests/integration/test_second_verifier_recipe.py)."
            " How long both take: [benchmark](benchmarks/verifiers.md).",
            "",
        ]
    )


def main() -> None:
    """Play, count, write."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--only", help="an expression of pytest's -k")
    asked.add_argument("--render", action="store_true", help="play nothing")
    given = asked.parse_args()
    rows: dict[str, Any] = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    code = 0
    if not given.render:
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder) / "counts"
            words = [sys.executable, "-m", "pytest", "-q", "-m", "nightly", *TESTS]
            words += ["-k", given.only] if given.only else []
            environment = os.environ | {"SECOND_COUNTS": str(counts)}
            code = subprocess.run(words, cwd=REPOSITORY, env=environment, check=False).returncode
            found = counts.read_text("utf-8").splitlines() if counts.exists() else []
        rows |= {what: figures for what, *figures in map(json.loads, found)}
        FIGURES.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(rendered(rows), "utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main()
