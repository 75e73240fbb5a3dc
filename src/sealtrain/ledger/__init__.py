"""The broker's append-only Merkle log: tree, stores, audit, proofs, witnesses and key rotation."""
