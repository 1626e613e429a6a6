"""A simulated LMCache cache server and vLLM engines: real HTTP on loopback, real record files in a real directory.

For trying the panel (`tierkeeper demo`) and for fast tests of everything that talks to servers. Names, types, counters
and failure modes were taken from LMCache 0.5.6 and vLLM 0.32.0; `tests/unit/sandbox` compares them with captured
answers. The rest of the product imports only from here:

- `Sandbox(directory, servers=1, engines=1, clock=time.time, config=SandboxConfig())`: ``await start()`` and
  ``await stop()``, or ``async with``, inside any running event loop. `server_url(s)`, `engine_url(s)`, `control_url`,
  `store_path` (``directory/l2``), `control`. `traffic(shape)` sends requests in the background, `prime(n)` answers n
  prompts at once to warm everything, `seed_demo()` fills the store with what weeks of use leave behind (`SeedReport`).
- `SandboxThread(…)`: the same in a thread and loop of its own, as a context manager, for synchronous callers.
- `demo_specs(now)`: servers, engines and config of the demo (pass them on to `Sandbox`).
- `Control`: `misbehave("server", slow_seconds=2)`, `behave()`, `kill`, `start`, `restart("engine", dtype="float16")`,
  `refuse`, `accept`, `hold_stores`, `release_stores`, `calls`, and the simulations (`server(i)`, `engine(i)`).
  From inside the sandbox's own event loop: ``await control.arun("restart", "engine", dtype="float16")``.
  Over HTTP at `control_url`: ``POST /server-0/misbehave {"hang": true}``.
- `Faults`: all that can go wrong, documented field by field.
- `KVLayout`, `ServerSpec`, `EngineSpec`, `Latency`, `SandboxConfig`, `TrafficShape`: what it is made of.

Time is what `clock` says: evictions, heartbeats, reaping and file-store delays follow it, so a test moves the clock
instead of sleeping. Only `Latency` (all zero unless set) and the faults `slow_seconds` and `hang` take real time.
What the answers are made of is told in `app.sandbox.model`: every byte of the records in use counts.
"""

from app.sandbox.config import EngineSpec, KVLayout, Latency, SandboxConfig, ServerSpec
from app.sandbox.control import Control
from app.sandbox.misbehaviour import Faults
from app.sandbox.sandbox import Sandbox, SandboxThread
from app.sandbox.seeding import SeedEpoch, SeedReport, demo_specs
from app.sandbox.tiers import ObjectKey
from app.sandbox.traffic import Traffic, TrafficShape

__all__ = [
    "Control",
    "EngineSpec",
    "Faults",
    "KVLayout",
    "Latency",
    "ObjectKey",
    "Sandbox",
    "SandboxConfig",
    "SandboxThread",
    "SeedEpoch",
    "SeedReport",
    "ServerSpec",
    "Traffic",
    "TrafficShape",
    "demo_specs",
]
