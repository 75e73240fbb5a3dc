"""``python -m sealtrain`` is the ``sealtrain`` command."""

from sealtrain.cli import main

if __name__ == "__main__":
    main()
