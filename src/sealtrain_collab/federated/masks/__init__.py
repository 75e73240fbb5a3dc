"""Sums of updates that the lead opens without reading one of them (spec/masked-sums.md)."""
