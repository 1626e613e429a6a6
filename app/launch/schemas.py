"""Shapes of launch commands towards the outside. Sizes in GiB (2**30) where the programs count so, as the name says."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.shapes import ApiModel, InputModel

Device = Literal["cuda", "cpu"]
Form = Literal["shell", "docker", "compose", "systemd"]


class StoreInput(InputModel):
    """The disk tier. `base_path` is a directory of the server's host; `per_layout` puts each layout into its own.

    `capacity_gib` needs the adapter `fs_native`, the only one that evicts; it always gets an eviction block.
    """

    adapter: Literal["fs", "fs_native"] = "fs"
    base_path: str = Field("/srv/lmcache", max_length=1024)
    per_layout: bool = True
    use_odirect: bool = True
    temp_dir: str = Field(".tmp", max_length=120)
    capacity_gib: float | None = Field(None, gt=0, le=10**7)


class ServerInput(InputModel):
    """`lmcache server`. `l1_gib` is required by the program and has no sensible default (it is the host's memory):
    give it, or a registered server that has it. `workers`: as many as the engine has ranks unless given.
    """

    l1_gib: float | None = Field(None, gt=0, le=10**6)
    chunk_size: int | None = Field(None, ge=1, le=10**6)
    host: str = Field("127.0.0.1", max_length=255)
    port: int = Field(5555, ge=1, le=65535)
    http_host: str = Field("127.0.0.1", max_length=255)
    http_port: int = Field(8080, ge=1, le=65535)
    workers: int = Field(1, ge=1, le=1024)
    watermark: float = Field(0.8, gt=0, lt=1)
    eviction_ratio: float = Field(0.2, gt=0, le=0.5)
    transfer_mode: Literal["lmcache_driven", "engine_driven", "auto"] = "lmcache_driven"
    instance_id: str | None = Field(None, max_length=120)
    store: StoreInput | None = Field(default_factory=StoreInput)


class EngineInput(InputModel):
    """`vllm serve`. `hybrid_block_tokens`: N of a hybrid model, from its start-up log or the sizing page.

    `model` is needed unless a registered engine tells it. `extra_args` are appended as they are (each one word);
    `environment` is added to what is generated.
    """

    model: str | None = Field(None, min_length=1, max_length=1024)
    served_model_name: str | None = Field(None, max_length=300)
    host: str = Field("127.0.0.1", max_length=255)
    port: int = Field(8000, ge=1, le=65535)
    dtype: str = Field("auto", max_length=40)
    kv_cache_dtype: str = Field("auto", max_length=40)
    max_model_len: int | None = Field(None, ge=1, le=10**8)
    max_num_seqs: int | None = Field(None, ge=1, le=10**6)
    block_size: int | None = Field(None, ge=1, le=10**6)
    tensor_parallel: int = Field(1, ge=1, le=1024)
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    hybrid_block_tokens: int | None = Field(None, ge=1, le=10**6)
    dev_mode: bool = False
    mq_timeout_seconds: float = Field(60.0, ge=10, le=3600)
    heartbeat_seconds: float = Field(10.0, ge=1, le=40)
    extra_args: list[str] = Field(default_factory=list, max_length=100)
    environment: dict[str, str] = Field(default_factory=dict, max_length=100)


class ImagesInput(InputModel):
    """Images for docker and compose; pin them. `isolated`: one network and a shared IPC namespace of their own,
    instead of the host's.
    """

    server: str = Field("lmcache/standalone:v0.5.6", max_length=300)
    engine: str = Field("lmcache/vllm-openai:v0.5.6", max_length=300)
    server_program: str = Field("/opt/venv/bin/lmcache", max_length=300)
    engine_program: str = Field("vllm", max_length=300)
    models_dir: str | None = Field(None, max_length=1024)
    isolated: bool = False


class UnitsInput(InputModel):
    """For systemd: who runs it and where the programs are."""

    user: str = Field("lmcache", max_length=64)
    server_program: str = Field("/opt/venv/bin/lmcache", max_length=300)
    engine_program: str = Field("/opt/venv/bin/vllm", max_length=300)


class LaunchInput(InputModel):
    """POST /launch-commands. With `server_id` or `engine_id` what runs there fills in what is not given."""

    server: ServerInput = Field(default_factory=ServerInput)
    engine: EngineInput = Field(default_factory=EngineInput)
    device: Device = "cuda"
    images: ImagesInput = Field(default_factory=ImagesInput)
    units: UnitsInput = Field(default_factory=UnitsInput)
    server_id: str | None = None
    engine_id: str | None = None


class FileView(ApiModel):
    """One text: `name` is what to call the file, `how` how to use it."""

    name: str
    form: Form
    scenario: Literal["A", "B", "both"]
    how: str
    text: str


class LaunchCheckView(ApiModel):
    """One verdict of our own checks on what was generated."""

    id: str
    verdict: Literal["ok", "warn", "fail", "unknown"]
    subject: str
    title: str
    evidence: str
    fix: str


class LaunchView(ApiModel):
    """Scenario A is the engine alone, B the same engine with the cache; `difference` is all that tells them apart.

    `server_argv` and the two engine lines are the words of the command lines. `base_path` is the directory offered for
    this layout; `fingerprint` is the registered layout's or of what the commands declare, as `fingerprint_of` says.
    """

    server_argv: list[str]
    engine_argv_a: list[str]
    engine_argv_b: list[str]
    difference: list[str]
    server_environment: dict[str, str]
    engine_environment: dict[str, str]
    base_path: str | None
    fingerprint: str | None
    fingerprint_of: str
    files: list[FileView]
    checks: list[LaunchCheckView]
    notes: list[str]
