"""Acceptance: the same prompts under conditions that differ only in where the cache comes from, and a verdict.

Public: `service` (AcceptanceService with `.hooks` and `.canaries`), `schemas`, `tables`, `removal` (own records through
cleanup), `reports.FORMS`.

The straight line of a run: `requests` (checked, frozen) → `execution` (the work kind) → `run` (facts, prompts, end) →
`conduct` (the arms in order) → `arms` (asking, evidence, comparison) over `stack` (the only module that speaks to
targets). Pure: `prompts`, `profiles`, `answers`, `compare`, `tolerance`, `evidence`, `verdict`, `stats`, `results`,
`reports`, `canary_verdict`, `history`.
"""
