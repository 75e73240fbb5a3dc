"""Products with public matrices on an untrusted accelerator, under one-time pads.

Specified in spec/one-time-pads.md. ``field`` and ``exact`` calculate, ``matrix`` and ``rows``
quantise, ``masks`` and ``pads`` hide, ``freivalds`` checks; ``accelerator``, ``dealer``, ``wire``
and ``serving`` are the other side, ``pool`` is a file. ``engine`` puts them together.
"""
