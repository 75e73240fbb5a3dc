"""Conversations between parties that proved themselves to each other (spec/attested-channel.md)."""
