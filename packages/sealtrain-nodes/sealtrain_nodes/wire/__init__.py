"""Collectives between attested nodes: authenticated, encrypted, a c10d backend of its own.

spec/node-wire.md is the format. A node makes a key and listeners (``identity``, ``membership``),
learns the membership, connects (``meeting``) and becomes a process group (``group``).
"""
