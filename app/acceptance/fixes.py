"""The ways out that findings point to: what the operator can do, in one place. Each is a whole sentence."""

from __future__ import annotations

ARMS = "Ask for at least one cache arm, such as external_l1."
RUN_AGAIN = "Run the test again; if it ends the same way, the steps of the run say where it stopped."
DEV_MODE = (
    "Start the engine with VLLM_SERVER_DEV_MODE=1 in its environment (it enables POST /reset_prefix_cache; keep that "
    "port away from users), or leave the external arms out and use restarted_engine with a restart hook."
)
BUSY = "Run the test while the engine is idle: it cannot empty its GPU cache while requests hold blocks of it."
RESET_LIES = (
    "Check that nothing between the panel and the engine answers POST /reset_prefix_cache in its place (a router, a "
    "proxy, one of several replicas), and that each engine URL reaches exactly one engine."
)
COUNTERS_DISAGREE = (
    "Check that each engine URL reaches exactly one engine (no router, no replicas behind one address) and that its "
    "GPU cache stays empty after POST /reset_prefix_cache; on one engine, look for failing loads in its log. Then run "
    "the test again."
)
UNCONFIRMED = (
    "Let the panel reach the engine's /metrics and run the test while nobody else uses the engine, or use a cache "
    "server that counts what it moves (lmcache_mp_num_chunks_loaded_total; transfer mode lmcache_driven)."
)
STATS = (
    "Start the engine with --enable-prompt-tokens-details, or use a connector that answers "
    "kv_transfer_params.cached_token_stats, and let the panel reach the engine's /metrics."
)
SALT = (
    "The engine or the connector ignores cache_salt (the in-process connector does): use the multi-process connector, "
    "or an engine version that honours cache_salt."
)
PREFIX_CACHING = (
    "Start the engine with --enable-prefix-caching, or give it more KV blocks: the prompts of one batch must fit."
)
BASE_LINE = (
    "Choose a second engine that was started without a KV connector (no --kv-transfer-config), and has not been asked "
    "these prompts by this run before."
)
UNFIT_MIXED = (
    "Use the completions API (a chat message cannot be cut) and prompts of at least two chunks, or leave mixed out."
)
UNFIT_SHARED = "Use longer prompts and an engine whose tokenizer can be asked (/tokenize), or leave shared_prefix out."
LONGER = "Use longer prompts: the cache works in whole chunks, set lengths above the server's chunk size."
NOT_USED = (
    "Look at the engine's connector and the server's registered engines: after a fast server restart an engine goes on "
    "without the cache until it is restarted itself."
)
GAVE_UP = (
    "An engine that gets no answer to a heartbeat within lmcache.mp.heartbeat_interval goes on without its server for "
    "a while: look for “entering degraded mode” in its log, take load off the host, or raise the interval. After a "
    "fast server restart the engine must be restarted too."
)
SHARE = (
    "Look for evictions, short records and L2 load failures on the server page; a smaller run (fewer or shorter "
    "prompts) shows whether capacity is the cause."
)
COUNTERS = "Let the panel reach the server's /metrics (it is not served with --otlp-endpoint), from LMCache 0.5.5 on."
L1_SMALL = "Give the server a larger L1, use fewer or shorter prompts, or leave external_l1 out."
EMPTY_L1 = (
    "Register the store's directory with this server so that the run's own keys can be removed by name, or allow "
    "emptying the whole L1 (allow_clear_l1)."
)
ALONE = (
    "Run the test while nobody else uses the engine, or let it report per-request numbers "
    "(--enable-prompt-tokens-details)."
)
NEIGHBOURS = (
    "Nothing has to be done for the verdict: every request of the run is judged by its own numbers, which others do "
    "not touch. Times to first token may be longer than on an idle engine: to compare them, repeat the run while "
    "nobody else uses it."
)
NOT_STORED = (
    "Check that the engine is registered at this server, that its connector may write (kv_role kv_both), and that no "
    "quota refuses new cache salts."
)
NEVER_L2 = (
    "Look at the server's L2 adapter: a full disk, a directory it may not write to and O_DIRECT on a file system "
    "without it all fail silently. The checks page looks for each."
)
LAYOUT = "Check that the engine is registered at the server: /status then lists its KV layout."
LAYOUT_CHANGED = "Somebody restarted the engine with other settings. Run the test again on the new layout."
RECORDS_CHANGED = "Nothing may rewrite a record in place: look for another writer, a sync tool, or failing storage."
RECORDS_LOST = (
    "Something removes records (an eviction, a cleanup, a second server): exclude it for the time of the run."
)
NOISY = (
    "The engine is not deterministic enough for this mode: use mode score, one request at a time, or "
    "VLLM_BATCH_INVARIANT=1 where the hardware has it."
)
SAME_ANSWERS = (
    "Use prompts that this engine answers differently (the built-in ones plant another codeword in each), let it give "
    "log-probabilities, and check that nothing between the panel and the engine answers in its place."
)
IGNORED = (
    "Look for what cuts, shortens or replaces prompts between the panel and the engine (a router, a proxy, a gateway "
    "that answers by itself), and for an attention window shorter than the prompts: use prompts that fit it."
)
COMPARE = "Ask for cold or warm as well: they are what cache arms are compared with."
#: Both answers are there to be read (`wrong_answers` says when).
READ_BOTH = "The page of the run shows both answers side by side."
WRONG = (
    "Do not roll out. What the cache returns is not what the engine computes: look for records of another layout in "
    "the store, and plan a cleanup."
)
WRONG_L2 = (
    "Do not roll out. The disk (L2) returns other bytes than were stored: the same records were right from L1. Look "
    "for another writer, a sync tool or failing storage under the L2 directory. Files that were overwritten keep their "
    "name and size, so the policy 'keep it safe' does not find them: filter the store's records by model, salt or "
    "layout epoch, and put them into quarantine."
)
WRONG_READ = (
    "Do not roll out. The answers are right from L1 and wrong from the disk (L2), though no record file changed from "
    "being stored to being read: the files are what the server wrote. Look at how it writes and reads them (its L2 "
    "adapter and version, O_DIRECT, the file system), and try another adapter option. Records of this store may hold "
    "wrong bytes from their beginning: do not reuse them."
)
WRONG_L1 = (
    "Do not roll out. The answers are wrong already from L1, before a disk is involved: look at the transfer between "
    "engine and cache server (checks: transfer mode, isolated IPC), and for records of another layout under the same "
    "names. Records stored meanwhile may be wrong with a right name and size: filter the store's records by model, "
    "salt or layout epoch, and put them into quarantine."
)
WRONG_ENGINE = (
    "Do not roll out. The engine contradicts itself without the cache server having supplied anything: look at the "
    "engine (its version, kernels, its GPU and log), before the cache."
)
WRONG_RESTART = (
    "Do not roll out. The answers are right until the restart and wrong after it: compare the engine's or the server's "
    "settings before and after (data type, chunk size, weights, layout), and plan a cleanup of incompatible records."
)
LOGPROBS = "Allow log-probabilities on the engine (--max-logprobs of at least 5)."
INCOMPLETE = (
    "Look for what drops or changes events of the engine's streams (a proxy or a gateway between the panel and the "
    "engine), and ask the engine itself."
)
CONSTANT = (
    "Let the panel ask the engine itself: something between them may fill the log-probabilities in. If the engine "
    "gives them so, look at its version and its log."
)
LONGER_ANSWERS = "The engine's answers are empty: use prompts that it answers, or more answer tokens."
SCORED = "Use prompts with an expected answer that this model gets right without the cache."
MORE_PROMPTS = "Use more scored prompts: with these few the drop could be chance."
ENGINE_HANGS = (
    "The engine accepts requests and does not answer them in time: after a fast restart of an engine-driven cache "
    "server it waits for transfers that never come (restart the engine); on a machine under load, give it more time "
    "(request_timeout_seconds)."
)
SERVER_HANGS = "Look at the cache server's log and at the load of its machine; run the test again when it answers."
ENGINE_DOWN = "Look at the engine's page and its log; run the test again when it answers."
SERVER_DOWN = "Start the cache server and wait until its engines are registered, then run the test again."
OLD_SERVER = "Use an LMCache multi-process server whose /status tells chunk_size (0.4.2 and later do)."
NOT_REGISTERED = (
    "Check the connector's lmcache.mp.host and port, and that server and engine use the same transfer mode; after a "
    "fast server restart the engine must be restarted too."
)
NO_L2 = "Start the server with --l2-adapter, or leave external_l2 out."
REFUSED = "Check the engine's API key, its model name and its --max-model-len against the prompts."
DEADLINE = "Give it more time (deadline_seconds), fewer or shorter prompts, or an engine that is less busy."
NO_SALTS = "Leave these arms out, or test on a server whose eviction policy is LRU."
SAME_MODEL = "Choose a second engine that serves the same model."
SHORTER = "Use shorter prompts or fewer answer tokens."
HOOK = (
    "Check the restart hook under Acceptance → Restart hooks (/acceptance/hooks): it must restart exactly this target "
    "and end only when that is done."
)
HEARTBEAT = (
    "The server came back before the engine's next heartbeat (10 s), so the engine goes on without a cache that it "
    "believes to have. Let the hook keep the server down for 25 s, and restart the engine now."
)
CANARY_LOST = (
    "Something removes or does not return records: look for cleanups, evictions and L2 load failures since the last "
    "check. Then keep new canaries; these will not come back."
)
CANARY_LAYOUT = (
    "Do not serve from this store: plan a cleanup of the incompatible records, then keep new canaries under the new "
    "layout."
)
CANARY_DRIFT = (
    "The engine itself changed (version, weights, kernels). Run an acceptance test, then keep new canaries; if the "
    "weights changed, declare a new generation of the model."
)
