"""Federated fine-tuning: parties train adapters on their own data, a lead merges them.

Flower carries rounds and messages and cannot read them (spec/federated-rounds.md).
"""
