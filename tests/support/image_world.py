"""Small images and tar files for tests of what reads them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int = 0, width: int = 8, height: int = 8) -> Image.Image:
    """Noise that is the same each time."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def png(seed: int = 0, width: int = 8, height: int = 8) -> bytes:
    return encoded(picture(seed, width, height))


def tar(path: Path, files: Sequence[tuple[str, bytes]], **options: Any) -> Path:
    """A tar file of plain members."""
    with tarfile.open(path, "w", **options) as target:
        for name, data in files:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            target.addfile(header, io.BytesIO(data))
    return path
