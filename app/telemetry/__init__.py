"""Polls, and what they leave behind: snapshots, samples, health changes, layout observations.

A tick goes `poller` (network) → `server_reading` / `engine_reading` (pure: values, samples, judgement, observation) →
`writer` (one short transaction a batch). `rates`, `window`, `hit_rate`, `health`, `contexts`, `observation` and
`token_flow` are the rules and know neither clock nor database. `rollup` and `history` are the past.
Public: `service.TelemetryService`, `poller.Poller`, `schemas`, `tables`, `metrics.CATALOGUE`.
"""
