"""Acceptance: proving that what a cache gives back is what the engine would have computed.

Public: `tables`, `schemas`, `service`. The benchmark room builds on these parts too, so their signatures are shared:
`stats` (order statistics), `facts` (what is in force at an engine and its server), `lexicon` (the engine's tokenizer),
`own_records` (a run's records by their salt), `hooks` (restarting a target), `removal` (removing a run's records).
"""
