"""What owners see in a browser: runs, recipes, decisions, and the walk through a run.

The core loads it by ``base.distributions``.
"""
