"""A machine with a TPM under a test root: it proves a boot, and nothing about hardware."""
