"""Canonical JSON, digests, encodings, clock, secrets, atomic files: what every layer stands on."""
