"""Training where data cannot be pooled, and where the fast machine cannot be trusted.

Several guests and machines that do not trust each other train one model. Each kind is a package
with its rules for a recipe, its roles in guests, its check of a manifest and its commands.
Importing a package of this layer loads no torch; its modules do.
"""
