"""Proximal policy optimisation: TRL no longer has it, so the loop is here, on its building blocks.

``rollout`` samples answers and scores them, ``mathematics`` turns scores into advantages and
compares policies, ``critic`` puts a value head on the policy, ``update`` learns from a round,
``loop`` runs all of them.

Schulman et al. 2017 (arXiv:1707.06347) and 2016 (arXiv:1506.02438); Ziegler et al. 2019
(arXiv:1909.08593) for language models.
"""
