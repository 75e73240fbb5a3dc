"""A guest in software and whole runs on it: the simulator, rehearsals, demos, a broker for a desk.

Nothing here proves anything, and every artefact says so. The core loads it by its table,
``base.distributions``.
"""
