"""Roles of a federated run: the lead that merges, and the parties that learn."""
