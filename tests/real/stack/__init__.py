"""A real LMCache server and real vLLM engines (CPU build), started and stopped by the tests.

`build` makes the environment once per machine, `control` starts and stops server and engines in it (as `programs`),
`clients` speaks to them. Nothing here imports the product, so what the tests learn from it is independent of what they
test.
"""
