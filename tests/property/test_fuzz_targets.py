"""The fuzzers' targets, a few hundred inputs each: no exception but sealtrain's own, and none slow.

``make fuzz`` runs the same functions with coverage as its guide and for as long as one likes.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sealtrain.errors import SealtrainError

FUZZ = Path(__file__).resolve().parents[2] / "tools" / "fuzz"
INPUTS = 60
SECONDS = 1.0


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_targets", FUZZ / "targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(FUZZ))  # targets of one subject lie beside
    spec.loader.exec_module(module)
    return module


TARGETS = load().TARGETS


def attempt(act: Callable[[bytes], object], data: bytes) -> bool:
    """Whether the input was accepted; anything but an error of ours goes through."""
    begun = time.process_time()
    try:
        act(data)
        accepted = True
    except SealtrainError:
        accepted = False
    assert time.process_time() - begun < SECONDS
    return accepted


def mutations(seeds: list[bytes], seed: str) -> list[bytes]:
    chance = random.Random(seed)  # noqa: S311
    found = []
    for _ in range(INPUTS):
        out = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(out) + 1)
            match chance.randrange(4):
                case 0:
                    out[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    out[at:at] = chance.randbytes(chance.randint(1, 16))
                case 2:
                    del out[at : at + chance.randint(1, 64)]
                case 3:
                    out[at:at] = out[: chance.randint(1, 64)]
        found.append(bytes(out))
    return found


# No simulator makes a RA-TLS certificate, a remote verdict or an endorsement of a cloud.
REFUSED_AT_FIRST = {"dstack-ratls", "launch-endorsement", "nvidia-verdict"}


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_answers_or_refuses(name: str) -> None:
    act, seeds = TARGETS[name]()
    accepted = [attempt(act, seed) for seed in seeds]
    # Otherwise a fuzzer would spend its time before the first check.
    assert any(accepted) or name in REFUSED_AT_FIRST
    short = sorted(seeds, key=len)[:4]
    for data in (b"", b"\0", b"\xff" * 64, bytes(4096), *mutations(short, name)):
        attempt(act, data)
