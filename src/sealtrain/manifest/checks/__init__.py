"""The numbered checks of spec/run-manifest.md §3, by what they look at.

Each is a function from a ``Case`` to one sentence of detail. It raises a typed error when it
refuses; when a fact it needs was not established because an earlier check failed, the case raises
``NotEstablished``. Checks that establish facts (quote, lock, datasets, decisions, receipts) leave
them in the case for the later ones.
"""
