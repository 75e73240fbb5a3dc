"""The run inside the guest: admit, attest, obtain keys, open, train, seal, sign."""
