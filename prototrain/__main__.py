"""Entry point of `python -m prototrain`."""

import sys

from prototrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
