"""The commands: one verb a file, each a thin door to the library."""

from headwise.prune.cli.app import app, main

__all__ = ["app", "main"]
