"""Federated fine-tuning: parties train adapters on their own data, a lead merges them.

Flower carries rounds and messages; what it carries it cannot read (spec/federated-rounds.md).
"""
