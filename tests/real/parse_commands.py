"""Runs in the real stack's environment: gives command lines to the programs' own parsers and prints what they say.

Standard input: {"server": [argv, …], "engine": [argv, …]}; the last line of standard output is ``RESULT`` and a JSON
list of [role, "ok" or the complaint] in that order. Nothing is started.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    sets = json.load(sys.stdin)
    found: list[list[str]] = []
    from lmcache.v1.multiprocess import http_server

    for argv in sets["server"]:
        sys.argv = ["lmcache", *argv[2:]]
        try:
            args = http_server.parse_args()
            http_server.parse_args_to_http_frontend_config(args)
            http_server.parse_args_to_mp_server_config(args)
            http_server.parse_args_to_config(args)
            http_server.parse_args_to_observability_config(args)
            found.append(["server", "ok"])
        except (SystemExit, Exception) as error:
            found.append(["server", f"{type(error).__name__}: {error}"])
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve = ServeSubcommand()
    serve.subparser_init(parser.add_subparsers())
    for argv in sets["engine"]:
        try:
            serve.validate(parser.parse_args(argv[1:]))
            found.append(["engine", "ok"])
        except (SystemExit, Exception) as error:
            found.append(["engine", f"{type(error).__name__}: {error}"])
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
