"""1797 real handwritten digits as PNG files: one hospital has folders, the other a tar file."""

from __future__ import annotations

import io
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from sklearn.datasets import load_digits

TRAINER = {"max_steps": 150, "save_steps": 75}
SEAL_AS = {
    "hospital-a.digits": "--format images",
    "hospital-b.digits": "--format webdataset",
    "hospital-b.digits-test": "--format images",
}


def prepare(folder: Path) -> dict[str, Path]:
    """Write the images."""
    return {
        "hospital-a.digits": _folders(folder / "scans-a", range(0, 700)),
        "hospital-b.digits": _archive(folder / "scans-b.tar", range(700, 1400)),
        "hospital-b.digits-test": _folders(folder / "scans-test", range(1400, 1797)),
    }


@cache
def _digits() -> Any:
    return load_digits()


def _scan(number: int) -> tuple[bytes, str]:
    """PNG and label of one digit."""
    digits = _digits()
    target = io.BytesIO()
    Image.fromarray((digits.images[number] * 15).astype("uint8")).save(target, "PNG")
    return target.getvalue(), str(digits.target[number])


def _folders(folder: Path, numbers: range) -> Path:
    for number in numbers:
        image, label = _scan(number)
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number:04}.png").write_bytes(image)
    return folder


def _archive(path: Path, numbers: range) -> Path:
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            image, label = _scan(number)
            fields = json.dumps({"label": label}).encode()
            for name, data in ((f"{number:04}.png", image), (f"{number:04}.json", fields)):
                header = tarfile.TarInfo(name)
                header.size = len(data)
                archive.addfile(header, io.BytesIO(data))
    return path
