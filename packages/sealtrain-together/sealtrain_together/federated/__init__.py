"""Federated fine-tuning: parties train adapters on their own data, a lead merges them.

Flower's processes carry messages and cannot read them (spec/federated-rounds.md); a recipe may name
one of Flower's strategies, which then merges in the lead's guest (``engine``).
"""
