"""Sizing: how many bytes a token takes, what fits into which tier, and when loading beats recomputing.

Public: `service.SizingService`, `schemas`. Everything else is pure arithmetic over a model's configuration.
"""
