"""Training on opened sources: loaders, phases, sealed checkpoints. Torch lives here; keys do not.

The runner hands in datasets that decrypt themselves and a store that seals what is written to it;
nothing in this package sees key material.
"""
