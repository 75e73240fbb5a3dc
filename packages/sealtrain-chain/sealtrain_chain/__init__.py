"""Owners' decisions on a public chain: read them without believing a node, sign and send them.

The extra ``chain``; nothing of it is imported before it is used (spec/chain.md). The chain only
ever adds a condition to what the ledger decides.
"""
