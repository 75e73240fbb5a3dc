"""Sealed checkpoints: what they keep, when they are written, and exact resume from them."""
