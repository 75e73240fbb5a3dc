"""A verified manifest in other formats: model signing, CycloneDX, model card, EU summary.

Every export is made from a manifest that passed all checks. The export of a simulated run carries
the marker, and every document names the digest of the manifest, because a reader can verify only
the manifest. No export needs a network.
"""
