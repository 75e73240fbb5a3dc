"""What we encrypt: sealed files, sealed datasets, sealed stores, and the stanzas of their keys.

The format is spec/sealed-file.md. ``file`` seals one file, ``dataset`` a folder of shards with
records and a root, ``store`` checkpoints and models; ``datakey``, ``stanza`` and ``hpke`` hold the
keys. This layer decides nothing about who may open what. Importing the package loads nothing heavy:
names are imported from their modules, and pyarrow only by the functions that need it.
"""
