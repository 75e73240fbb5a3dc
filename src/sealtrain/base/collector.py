"""Load modules without the garbage collector.

What modules define lives as long as the process. The collector would look at all of it while they
are loaded, up to a quarter of that time, and again whenever
garbage is collected later.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """While inside, nothing is collected; what is there at the end never is."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collecting:
            gc.enable()
