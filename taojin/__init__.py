"""Taojin 淘金: a corpus engine for Chinese-first training text. Start at `taojin.pipeline`."""

__version__ = "0.1.0"
