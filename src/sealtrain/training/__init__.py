"""Training on opened sources: data, models, phases, checkpoints. Torch lives here; keys do not.

The guest hands in datasets that decrypt themselves and a store that seals what is written to it;
nothing in this package sees key material.

Importing any part of it first switches off trackers, hubs and telemetry of training libraries.
"""

from sealtrain.training.silence import silence

silence()
