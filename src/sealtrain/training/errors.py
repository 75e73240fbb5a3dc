"""Errors of training."""

from __future__ import annotations

from sealtrain.errors import Refused, SealtrainError, Unreachable


class ChannelBroken(Refused):
    """A channel between attested parties carried something other than the next message."""


class ChannelCut(ChannelBroken):
    """A channel ended early: the peer died, or the network cut the connection."""


class ChannelRefused(Refused):
    """The peer on a channel is not the expected party, or speaks another protocol."""


class PrivacyBroken(Refused):
    """Training or evaluation would not, or did not, keep the promised differential privacy."""


class ModelNotReloaded(Refused):
    """The model that a script saved does not load again with the weights that were trained."""


class DecryptionLost(Unreachable):
    """The prefetch process, which decrypts ahead of training, died."""

    retry = "never"


class PeerUnreachable(Unreachable):
    """The peer on a channel did not answer in time."""

    retry = "later"


class RankLost(Unreachable):
    """A process of the training run died."""

    retry = "never"


class TrainingDiverged(SealtrainError):
    """A loss, gradient norm, weight or answer is not a finite number; no such model is sealed."""
