"""Verification of single files, and their explanation to people."""
