"""Scripts and styles of the console, held in memory: no path of a request names a file.

The look is the report's (``look.css``, ``report.css`` and ``comparison.css`` of ``manifest``);
``console.css`` adds what only pages have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from sealtrain.base.digests import sha256_hex

_SCRIPT: Final = "text/javascript; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
_LOOK: Final = ("look.css", "report.css", "comparison.css")
_KINDS: Final = {"js": _SCRIPT, "css": _STYLE, "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that pages load.

    Attributes:
        name: Last part of its path.
        content: Its bytes.
        media_type: Of the answer.
    """

    name: str
    content: bytes
    media_type: str

    @property
    def url(self) -> str:
        """Where it is: another content has another address, so that browsers keep it."""
        return f"/static/{self.name}?v={sha256_hex(self.content)[:16]}"


@cache
def assets() -> Mapping[str, Asset]:
    """Every asset, by name."""
    here = files("sealtrain_console.web") / "static"
    look = [files("sealtrain.manifest") / name for name in _LOOK]
    style = b"\n".join(file.read_bytes() for file in (*look, here / "console.css"))
    found = [Asset(name="style.css", content=style, media_type=_STYLE)]
    for file in here.iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None and file.name != "console.css":
            found.append(Asset(name=file.name, content=file.read_bytes(), media_type=kind))
    return {asset.name: asset for asset in found}
