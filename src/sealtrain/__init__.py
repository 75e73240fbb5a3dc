"""sealtrain: train on data you are not allowed to see."""

__version__ = "0.1.0"
