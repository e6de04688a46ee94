"""``python -m edge_runtime`` is ``edge-runtime``."""

from .cli import main

if __name__ == "__main__":
    main()
