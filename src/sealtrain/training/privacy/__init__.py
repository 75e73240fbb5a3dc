"""Differential privacy of training and evaluation: noise, accounting, private steps, audits."""
