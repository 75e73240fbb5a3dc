"""Shared by all kinds in which several parties train: a lead, its parties, one manifest."""
