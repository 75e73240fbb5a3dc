"""An accelerator as a program: ``serving.served`` starts it and reads what it says."""

from __future__ import annotations

import json
import os
import sys

from sealtrain_together.pads.serving import run

if __name__ == "__main__":
    run(
        json.loads(sys.argv[1]),
        say=lambda line: os.write(sys.stdout.fileno(), line + b"\n"),
    )
