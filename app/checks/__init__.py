"""Checks: the settings an operator verifies, read live and judged one rule a file.

Public: `service.ChecksService`, `schemas`, `tables`, `commands.check_texts` (verdicts on texts alone: command lines, a
compose file, an environment, logs). The rules (`rules/`) are pure: facts in, findings out; `gather` fetches the facts.
"""
