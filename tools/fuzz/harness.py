"""One fuzzing process: ``python tools/fuzz/harness.py TARGET CORPUS [libFuzzer options]``.

Only sealtrain is instrumented: coverage of the libraries would drown ours. A finding is any
exception outside sealtrain's own tree, which stops the process and leaves its input in a file.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import warnings
from pathlib import Path

from targets import TARGETS

from sealtrain.errors import SealtrainError


def main() -> None:
    """Seed the corpus, then fuzz until libFuzzer's own options say stop."""
    name, corpus, options = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["sealtrain"]):
        act, seeds = TARGETS[name]()
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    # Once for a whole process: a library's deprecation is told by the tests, not here.
    warnings.simplefilter("ignore")

    def one_input(data: bytes) -> None:
        try:
            act(data)
        except SealtrainError:
            return

    for seed in seeds:
        one_input(seed)
    atheris.Setup([name, str(corpus), *options], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
