"""One accelerator that travels between holders of data that stay where they are.

See ``spec/travelling.md``. ``accelerator`` does as it is told, ``holder`` gives its chunks,
``orchestrator`` owns model and schedule. Verifiers check the run log by the rules of
``sealtrain.manifest.checks.collaborations.travelling``.
"""
