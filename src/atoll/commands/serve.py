"""Looking at runs in a browser: `atoll serve`."""

from __future__ import annotations

import os
import sys

from atoll.base.streams import say
from atoll.questions.verbs import ServeQuestion


def serve(question: ServeQuestion) -> None:
    from atoll.serve.server import Explorer

    if question.token is None and (secret := os.environ.get("ATOLL_TOKEN")):
        question = question.changed(token=secret)
    explorer = Explorer(
        question.folders,
        host=question.host,
        port=question.port,
        token=question.token,
        allow_hosts=question.allow_host,
    )
    explorer.warm()
    for folder in explorer.left_out:
        say(folder.reason)
    print(explorer.address, flush=True)
    if sys.stderr.isatty():
        print("Ctrl-C ends it.", file=sys.stderr)
    if question.open:
        import webbrowser

        webbrowser.open(explorer.address)
    try:
        explorer.serve_forever()
    except KeyboardInterrupt:
        return
