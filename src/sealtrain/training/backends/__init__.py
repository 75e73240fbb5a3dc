"""Training backends of other libraries: loaded first, and fed with sealed data."""
