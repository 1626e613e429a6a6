"""Alarm rules by family: which fact, its limits, how long, how bad, what explains it, what it means, what to do."""
