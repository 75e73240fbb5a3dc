"""Keys at rest and keys derived: identities, root secrets, derivations. Format: spec/keys.md."""
