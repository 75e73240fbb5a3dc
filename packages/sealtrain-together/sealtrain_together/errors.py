"""Errors that several kinds of collaboration raise."""

from __future__ import annotations

from sealtrain.errors import Refused, Unreachable


class CapabilityRefused(Refused):
    """A write capability is unknown, used or withdrawn, or does not cover the write."""


class ProductAltered(Refused):
    """An accelerator or a dealer returned a wrong product."""


class UpdateRefused(Refused):
    """A party of a federation, or its update, was refused."""


class DealerUnreachable(Unreachable):
    """The dealer of pads is gone or broken; go on with one that works."""


class TooFewParties(Unreachable):
    """Fewer parties answered in time than a round of the federation needs."""

    retry = "later"
