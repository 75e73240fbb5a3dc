"""Errors of a run on several nodes."""

from __future__ import annotations

from sealtrain.errors import Refused, Unreachable


class NodeRefused(Refused):
    """A node is not one that the run expects, or says otherwise than the recipe."""


class NodeTaken(NodeRefused):
    """Another guest has joined under this node's number."""

    retry = "later"


class NodeMissing(Unreachable):
    """Not all nodes of the run joined in time."""

    retry = "later"
