"""Products with public matrices on an untrusted accelerator, under one-time pads.

Specified in spec/one-time-pads.md. ``field`` and ``exact`` calculate, ``matrix`` and ``rows``
quantise, ``masks`` and ``pads`` hide, ``freivalds`` checks. The accelerator is ``accelerator`` in
the guest and ``serving`` at the other end of ``wire``; both ends of a dealer are ``dealer``. What
the two machines share is ``multiplying`` and ``tensors``. ``pool`` is a file. ``engine`` puts them
together.
"""
