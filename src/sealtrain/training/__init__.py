"""Training on opened sources: data, models, phases, checkpoints. Torch lives here.

The guest hands in datasets that decrypt themselves and a store that seals what is written to it.
Nothing in this package obtains a key, or is given one that opens data, models or checkpoints. One
secret of the run is given to it, from which private training derives noise (``privacy.noise``).

Importing any part of it first switches off trackers, hubs and telemetry of training libraries.
"""

from sealtrain.training.silence import silence

silence()
