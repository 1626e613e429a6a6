"""Tierkeeper: the operations panel for LMCache."""

__version__ = "0.1.0"
