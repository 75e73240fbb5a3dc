"""A broker over HTTP: bounded bodies in, messages out, nothing decided here."""
