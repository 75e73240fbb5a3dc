"""The client's side of a broker, for guests and owners: pin it, ask it, renew a lease."""
