"""Benchmark: what the cache is worth on the operator's own servers, and published experiments beside it.

Public: `tables`, `schemas`, `service`. Pure cores: `numbers` (order statistics over requests, runs and scenarios),
`arrival` (Poisson), `prompts` and `shapes` (what is asked), `tokens` (where prompt tokens came from), `snapshot`
(what was in force), `verdict`, `result`, `experiments` (published references and their scaling). `conduct` and `stack`
speak to targets; `execution` is the work kind ``benchmark``.
"""
