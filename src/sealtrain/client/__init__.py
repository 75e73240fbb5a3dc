"""The client's side of a broker: pin it, ask it, obtain keys and renew their lease."""
