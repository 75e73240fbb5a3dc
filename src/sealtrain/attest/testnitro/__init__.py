"""Nitro documents under a test root: no vendor vouches for the enclave."""
