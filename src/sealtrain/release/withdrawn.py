"""Did an owner take back data that a run would get, or got before? Pure, as ``release.decide``."""

from __future__ import annotations

from collections.abc import Mapping

from sealtrain.errors import DatasetWithdrawn

__all__ = ["none_withdrawn"]


def none_withdrawn(withdrawn: Mapping[str, str]) -> None:
    """See that nothing a run is about was withdrawn.

    Args:
        withdrawn: Of the datasets it asks for or was given before, those that were withdrawn,
            each with the name of its owner.

    Raises:
        DatasetWithdrawn: There are some.
    """
    if withdrawn:
        owners = ", ".join(sorted(set(withdrawn.values())))
        raise DatasetWithdrawn(
            f"{owners} withdrew data of this run",
            check="withdrawal",
            owner=owners,
            got=", ".join(sorted(withdrawn)[:4]),
            expected="datasets that nobody withdrew",
            hint="a withdrawal is final: lock a recipe without this data and train anew",
        )
