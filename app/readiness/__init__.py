"""Whether a pair of engine and cache server is ready for production: one judgement over everything the panel knows."""
