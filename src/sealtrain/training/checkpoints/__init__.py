"""Sealed checkpoints: their content, when they are written, and exact resume from them."""
