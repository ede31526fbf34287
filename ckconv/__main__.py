"""Entry point of ``python -m ckconv``."""

from __future__ import annotations

from ckconv.cli import main

if __name__ == "__main__":
    main()
