"""Cleanup: policy → plan (frozen facts) → run → quarantine, by the rules of removal (R1–R8).

Public modules: `service` (CleanupService), `schemas`, `tables`, `policy` (parsing and presets). Everything else is
inside: `plan` is pure, `removal`, `quarantine`, `lock` and `journal` touch the disk and the journal, `run` is the
straight line through them, `tiers` clears L1 and L0.
"""
