"""The roles of a travelling run as guests: ``hold``, ``accelerate`` and ``orchestrate``.

See ``spec/travelling.md``. The work itself is ``travelling``; here it gets data, keys, the
run log and a place to be in.
"""
