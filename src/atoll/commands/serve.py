"""Looking at runs in a browser: `atoll serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.errors import AtollError


def serve(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that `atoll search --out` or `atoll plan --out` writes, or that hold "
            "such folders.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8737,
    host: Annotated[
        str, typer.Option(help="Address to bind; off loopback every request needs a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ATOLL_TOKEN",
            help="The token to ask for; default: none on loopback, a new one elsewhere.",
            show_envvar=True,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name to answer to; repeatable.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Explore stored runs in a browser, also while a search is writing them. Reads only.

    Example: atoll serve runs/mine runs/other
    """
    from atoll.serve.server import Explorer

    if token is not None and len(token) < 8:
        raise AtollError("token: expected at least 8 characters; leave it out to have one made.")
    explorer = Explorer(
        folders, host=host, port=port, token=token, allow_hosts=allow_host or ()
    )
    explorer.warm()
    for other in explorer.left_out:
        print(f"atoll: {other.reason}", file=sys.stderr)
    print(explorer.address, flush=True)
    if sys.stderr.isatty():
        print("Ctrl-C ends it.", file=sys.stderr)
    if open_browser:
        import webbrowser

        webbrowser.open(explorer.address)
    try:
        explorer.serve_forever()
    except KeyboardInterrupt:
        return
