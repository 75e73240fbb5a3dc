"""Training where data cannot be pooled, and where the fast machine cannot be trusted.

Several guests and machines that do not trust each other train one model. Importing a package of
this layer loads no torch; its modules do.
"""

from sealtrain.training.silence import silence

silence()
