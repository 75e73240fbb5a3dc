"""The disk of a guest machine, written byte for byte from the files that go into it."""
