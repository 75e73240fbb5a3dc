"""A verified manifest in the words of others: model signing, CycloneDX, model card, EU summary.

Every export is made from a manifest that passed all checks, and says what kind of run it was: a
simulated one carries the marker, and every document names the digest of the manifest, which is what
can be verified. Nothing here needs a network.
"""
