"""The key-release service: holds the root secret, decides, writes the ledger, answers over HTTP."""
