"""What all HTTP targets have in common: bounded requests, JSON and metrics that may be hostile, event streams.

Used by `app.lmcache` and `app.vllm` alone; it knows neither of them and imports nothing of ours but `app.errors`.
Public: `transport` (TargetHttp, Answer), `fields`, `exposition` (parse_metrics, Samples), `sse` (EventParser).
"""
