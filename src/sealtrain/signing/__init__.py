"""What we sign: identities, DSSE envelopes, in-toto statements, run logs, Merkle trees, notes."""
