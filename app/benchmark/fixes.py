"""The ways out that findings point to. Each is a whole sentence for the operator."""

from __future__ import annotations

ENGINE_DOWN = "Check that the engine runs and that this host can reach its address; then run again."
SERVER_DOWN = "Check that the cache server runs and that this host can reach its HTTP port; then run again."
ALONE = "Run it while nobody else uses these engines and this cache server: their requests are in the times."
SAME = "Leave engines and cache servers alone while a run goes on; then run again."
DEV_MODE = (
    "Start the engine with VLLM_SERVER_DEV_MODE=1 in its environment (keep that port away from users), or choose "
    "prefix_cache: left with a working set larger than the GPU cache."
)
BUSY = "Run it while the engine is idle: it cannot empty its GPU cache while requests hold blocks of it."
RESET_LIES = (
    "Check that each engine's URL reaches exactly one engine and that nothing between answers POST /reset_prefix_cache "
    "in its place."
)
PREFIX_OFF = "Restart the engine with --no-enable-prefix-caching, or choose prefix_cache: reset or left."
HYBRID = "Hybrid models need prefix caching on (--mamba-cache-mode align); choose prefix_cache: reset or left."
REFUSED = "Look at the engine's log: these requests were refused. Shorter prompts or a lower rate may be needed."
SHORTER = "Use fewer tokens per prompt, or start the engine with a larger --max-model-len."
NOT_REGISTERED = (
    "Restart the engine, or wait until it has registered: a server that came back within a heartbeat is not noticed."
)
STORES = "Look at the server's L2 adapter (a full disk, wrong permissions): its stores do not end."
CHUNKS = "Use longer prompts, or a server with a smaller chunk size: only whole chunks come back."
SALT = "The engine or its connector ignores cache_salt; use the multi-process connector and a current engine."
USED = (
    "Look at the server page: evictions, failed loads, or an engine that works without its cache after a quick restart "
    "of the server."
)
LONGER = "Repeat with more runs or longer prompts, or on a quieter host."
FILES = "Register the store's directory with this server, where this host can read it."
RESTART = "Restart the target the run waits for, or give a restart hook that does (on the page /acceptance/hooks)."
RUN_AGAIN = "Run it again; if it ends the same way, the findings say where it stopped."
RATE = "Lower the rate, or raise the engine's --max-num-seqs: requests queued longer than they should have."
SCOPE = "Set the same image and flags on both sides, so that only the connector differs."
INODES = "Ask for fewer records, or use a file system with more inodes: each record file takes one."
