"""The table of TEEs. Another one has a ``Tee`` in a module that is named here.

Its name is also one of ``base.platforms.Platform``, or ``Tee.of`` names the one that shows it.
Its name has a line in ``base.tiers``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from sealtrain.attest.tee import TEST_VENDOR, Tee
from sealtrain.base.tiers import tier_of
from sealtrain.errors import UsageError

_FOLDERS: Final = ("dstack", "tdx", "nitro", "snp")
"""Their ``tee.py`` ends in ``TEE``; kinds of rented machines are in ``attest.kinds``."""

TEES: Final[tuple[Tee, ...]] = (
    *(import_module(f"sealtrain.attest.{folder}.tee").TEE for folder in _FOLDERS),
    *import_module("sealtrain.attest.kinds").TEES,
)
_TIERS: Final = {tee.name: tier_of(tee.name) for tee in TEES}
"""A TEE without a tier is an error here, at import."""
VENDORS: Final = tuple(dict.fromkeys(tee.vendor for tee in TEES if tee.vendor != TEST_VENDOR))
"""Whose hardware a policy can trust."""
_BY_NAME: Final = {tee.name: tee for tee in TEES}


def tee_of(name: str) -> Tee:
    """The TEE of that name.

    Raises:
        UsageError: No TEE has that name.
    """
    if name not in _BY_NAME:
        raise UsageError("no such TEE", got=name, expected=", ".join(_BY_NAME))
    return _BY_NAME[name]
