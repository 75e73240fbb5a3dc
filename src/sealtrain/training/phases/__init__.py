"""A module for each phase; no phase imports another."""
