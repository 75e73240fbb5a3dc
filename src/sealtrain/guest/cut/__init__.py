"""Both sides of a cut run (spec/split-cut.md): a guest serves, owners send."""
