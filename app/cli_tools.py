"""The commands about settings, sizes and measurements: `check`, `size`, `launch`, `bench` (added to `app.cli`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli_options import Json, Token, Url


def check(
    server: Annotated[str | None, typer.Option(help="Cache server: URL, or name or id of a registered one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine: URL, or name or id of a registered one.")] = None,
    also: Annotated[
        list[str] | None, typer.Option(help="Another server to compare directories with; repeatable.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="The engine's start-up log: a file, or - for stdin.")] = None,
    server_log: Annotated[str | None, typer.Option(help="The cache server's start-up log.")] = None,
    environment: Annotated[
        str | None, typer.Option(help="LMCACHE_* environment or YAML of the in-process mode.")
    ] = None,
    commands: Annotated[
        str | None, typer.Option(help="Command lines or a compose file to judge before a start.")
    ] = None,
    write_probe: Annotated[bool, typer.Option(help="Try a real write in our own folder of the store.")] = True,
    all_verdicts: Annotated[bool, typer.Option("--all", help="Show what is ok, too.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Verify the settings of a running pair, or of texts. Exit: 0 no fail, 1 any fail, 3 not reachable."""
    from app.commands.check import CheckOptions, check_command

    options = CheckOptions(
        server=server,
        engine=engine,
        also=tuple(also or ()),
        log=log,
        server_log=server_log,
        environment=environment,
        commands=commands,
        write_probe=write_probe,
        all_verdicts=all_verdicts,
        as_json=as_json,
        url=url,
        token=token,
    )
    raise typer.Exit(check_command(options))


def size(
    config: Annotated[str | None, typer.Option(help="A model's config.json (- for stdin).")] = None,
    server: Annotated[str | None, typer.Option(help="Cache server: URL, or name or id; takes its layouts.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model of the server.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine by name or id.")] = None,
    bytes_per_token: Annotated[int | None, typer.Option(help="KV bytes of one token, if you know them.")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, or the dtype of the KV cache.")] = "auto",
    tensor_parallel: Annotated[int, typer.Option(help="Tensor parallel size.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Pipeline parallel size.")] = 1,
    chunk_size: Annotated[int | None, typer.Option(help="LMCache's chunk size in tokens.")] = None,
    l0_gib: Annotated[float | None, typer.Option(help="GPU KV cache, GiB.")] = None,
    l0_tokens: Annotated[int | None, typer.Option(help="GPU KV cache, tokens.")] = None,
    l1_gib: Annotated[float | None, typer.Option(help="L1, GiB.")] = None,
    l2_gib: Annotated[float | None, typer.Option(help="L2, GiB.")] = None,
    contexts: Annotated[int | None, typer.Option(help="Contexts of the working set.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each context.")] = None,
    unordered: Annotated[bool, typer.Option(help="Contexts come back in no fixed order.")] = False,
    retention_days: Annotated[float | None, typer.Option(help="How long records are to be kept on disk.")] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="New prompt tokens a second, for the retention.")
    ] = None,
    prefill: Annotated[float | None, typer.Option(help="Prefill speed, tokens a second, for the break-even.")] = None,
    as_json: Json = False,
) -> None:
    """KV bytes per token, what fits in L0, L1 and L2, and when loading beats recomputing."""
    from app.commands.size import SizeOptions, size_command

    options = SizeOptions(
        config=config,
        server=server,
        model=model,
        engine=engine,
        bytes_per_token=bytes_per_token,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        chunk_size=chunk_size,
        l0_gib=l0_gib,
        l0_tokens=l0_tokens,
        l1_gib=l1_gib,
        l2_gib=l2_gib,
        contexts=contexts,
        tokens=tokens,
        unordered=unordered,
        retention_seconds=None if retention_days is None else retention_days * 86_400,
        tokens_per_second=tokens_per_second,
        prefill=prefill,
        as_json=as_json,
    )
    raise typer.Exit(size_command(options))


def launch(
    model: Annotated[str | None, typer.Option(help="Model, as vLLM takes it.")] = None,
    l1_gib: Annotated[float | None, typer.Option(help="L1 size, GiB.")] = None,
    base_path: Annotated[str | None, typer.Option(help="Directory of the disk tier.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="LMCache's chunk size in tokens.")] = None,
    hybrid_block_tokens: Annotated[int | None, typer.Option(help="Block size N of a hybrid model.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="Tensor parallel size.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu.")] = None,
    server: Annotated[str | None, typer.Option(help="A registered server to take facts from.")] = None,
    engine: Annotated[str | None, typer.Option(help="A registered engine to take facts from.")] = None,
    form: Annotated[
        str | None, typer.Option("--from", help="JSON file with the body of POST /launch-commands.")
    ] = None,
    only: Annotated[str | None, typer.Option("--form", help="shell, docker, compose or systemd.")] = None,
    output: Annotated[str | None, typer.Option(help="Folder to write the files into.")] = None,
    as_json: Json = False,
) -> None:
    """Command lines, compose files and units that fit each other and pass the checks."""
    from app.commands.launch import LaunchOptions, launch_command

    options = LaunchOptions(
        model=model,
        l1_gib=l1_gib,
        base_path=base_path,
        chunk_size=chunk_size,
        hybrid_block_tokens=hybrid_block_tokens,
        tensor_parallel=tensor_parallel,
        device=device,
        server=server,
        engine=engine,
        form=form,
        only=only,
        output=output,
        as_json=as_json,
    )
    raise typer.Exit(launch_command(options))


def bench(
    engine: Annotated[str, typer.Option(help="Scenario B: the engine with the cache, by name or id.")],
    baseline_engine: Annotated[
        str | None, typer.Option(help="Scenario A; the same engine as --engine measures it with a cache of no use.")
    ] = None,
    reader: Annotated[list[str] | None, typer.Option(help="Engines of the same server that make pass 2.")] = None,
    form: Annotated[str | None, typer.Option(help="two_pass, request_rate, restart, accumulation or lookup.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="repeat, one_document, system_prompt, multi_turn, code_base or use_once."),
    ] = None,
    contexts: Annotated[int | None, typer.Option(help="Documents, conversations or repositories.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each.")] = None,
    users: Annotated[int | None, typer.Option(help="Questions about each document.")] = None,
    turns: Annotated[int | None, typer.Option(help="Turns of each conversation.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of each answer.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Measured runs; run 0 comes on top.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at a time.")] = None,
    wait: Annotated[float | None, typer.Option(help="Seconds between the passes.")] = None,
    prefix_cache: Annotated[
        str | None, typer.Option(help="The engines' own prefix cache: auto, reset, left or off.")
    ] = None,
    empty_l1: Annotated[bool, typer.Option(help="Empty L1 of the run's own objects between the passes.")] = False,
    noise_repeat: Annotated[bool, typer.Option(help="Repeat one scenario with nothing changed.")] = True,
    prompts: Annotated[int | None, typer.Option(help="Prompts of the request-rate form.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, Poisson.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the arrival times.")] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help="Your own prompts: ShareGPT-style JSON, a list of texts, or JSON lines.")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="A published experiment, such as ab; fills in sizes.")] = None,
    mode: Annotated[str | None, typer.Option(help="Its sizes: scaled (default) or exact.")] = None,
    restart: Annotated[str | None, typer.Option(help="Form restart: engine, server or both.")] = None,
    restart_hook: Annotated[str | None, typer.Option(help="Restart hook by id; without one the run waits.")] = None,
    records: Annotated[str | None, typer.Option(help="Form lookup: comma-separated numbers of records.")] = None,
    allow_fill: Annotated[bool, typer.Option(help="Let empty record files be written into the store.")] = False,
    hardware: Annotated[str | None, typer.Option(help="What the result holds for, in your words.")] = None,
    image: Annotated[str | None, typer.Option(help="Image of scenario B.")] = None,
    baseline_image: Annotated[str | None, typer.Option(help="Image of scenario A.")] = None,
    baseline_hardware: Annotated[str | None, typer.Option(help="Hardware of scenario A, where it is another.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which the run ends as invalid.")] = None,
    keep_records: Annotated[bool, typer.Option(help="Leave the run's own records on disk.")] = False,
    tables: Annotated[bool, typer.Option(help="Print the tables as vllm bench serve prints them.")] = False,
    export: Annotated[
        list[Path] | None,
        typer.Option(help="Write an export; the ending chooses .json, .md, .txt, .svg, .csv, .jsonl."),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Measure what the cache is worth. Exit: 0 a valid run, 1 an invalid one, 3 error."""
    from app.commands.bench import BenchOptions, lookup_of, restart_of
    from app.commands.bench import bench as run

    fields = {
        "form": form,
        "shape": shape,
        "contexts": contexts,
        "tokens": tokens,
        "users": users,
        "turns": turns,
        "output_tokens": output_tokens,
        "repeats": repeats,
        "concurrency": concurrency,
        "wait_seconds": wait,
        "prefix_cache": prefix_cache,
        "empty_l1": empty_l1,
        "noise_repeat": noise_repeat,
        "prompts": prompts,
        "rate": rate,
        "seed": seed,
        "experiment": experiment,
        "experiment_mode": mode,
        "restart": restart_of(restart, restart_hook),
        "lookup": lookup_of(records, allow_fill=allow_fill),
        "hardware": hardware,
        "image": image,
        "baseline_image": baseline_image,
        "baseline_hardware": baseline_hardware,
        "deadline_seconds": deadline,
        "remove_records": not keep_records,
    }
    options = BenchOptions(
        engine=engine,
        baseline_engine=baseline_engine,
        readers=tuple(reader or ()),
        fields=fields,
        prompts_file=prompts_file,
        export=tuple(export or ()),
        tables=tables,
        as_json=as_json,
        url=url,
        token=token,
    )
    raise typer.Exit(run(options))
