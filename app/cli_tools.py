"""The commands about settings, sizes and measurements: `check`, `size`, `launch`, `bench` (added to `app.cli`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    engine: Annotated[str, typer.Option(help="Engine with the cache (scenario B), by name or id.")],
    baseline_engine: Annotated[str | None, typer.Option(help="Engine of scenario A, by name or id.")] = None,
    reader: Annotated[list[str] | None, typer.Option(help="Engine that makes pass 2; repeatable.")] = None,
    form: Annotated[str | None, typer.Option(help="two_pass, request_rate, restart, accumulation or lookup.")] = None,
    shape: Annotated[str | None, typer.Option(help="repeat, one_document, system_prompt, … , use_once.")] = None,
    contexts: Annotated[int | None, typer.Option(help="Contexts of the two-pass form.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each prompt.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Measured runs; run 0 is its own row.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts of the request-rate form.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second (Poisson arrivals).")] = None,
    prompts_file: Annotated[Path | None, typer.Option(help="Prompts from a ShareGPT-style file.")] = None,
    export: Annotated[list[Path] | None, typer.Option(help="Write the numbers; the ending chooses the form.")] = None,
    tables: Annotated[bool, typer.Option(help="Print the tables in the shape of `vllm bench serve`.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Measure what the cache is worth. Exit: 0 valid, 1 invalid, 3 error."""
    from app.commands.bench import BenchOptions
    from app.commands.bench import bench as run

    fields: dict[str, Any] = {
        "form": form,
        "shape": shape,
        "contexts": contexts,
        "tokens": tokens,
        "repeats": repeats,
        "prompts": prompts,
        "rate": rate,
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
