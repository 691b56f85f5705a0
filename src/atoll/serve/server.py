"""HTTP server with one thread per connection, until the user ends it.

Concurrent connections and responses are bounded, which bounds memory.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.base.identity import VERSION
from atoll.serve.app import App, Response, error_response
from atoll.serve.guard import HEADERS, Guard, make_guard
from atoll.serve.runs import SearchRun, open_runs

DEFAULT_PORT = 8737
MOST_CONNECTIONS = 128
"""Beyond it the oldest connection without a request closes, else the oldest idle one."""
MOST_ANSWERS = 8
"""Concurrent responses; each may need arrays with one value per design."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"atoll/{VERSION}"
    sys_version = ""
    timeout = 60

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser has gone

    def _answer(self) -> None:
        assert isinstance(self.server, _Server)
        with self.server.responding(self.connection):
            self._send(self.server)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request whose head cannot be parsed, without repeating any of it."""
        self.request_version = self.protocol_version  # else there may be no status line
        self.close_connection = True
        status = {501: 405, 505: 400}.get(code, code)
        self._write(error_response(status, f"{HTTPStatus(status).phrase}.", HEADERS))

    def _send(self, server: _Server) -> None:
        if self.headers.defects:
            self.send_error(400)
            return
        names = {name.lower() for name in self.headers}
        headers = {name: ", ".join(self.headers.get_all(name, ())) for name in names}
        body = self.rfile.read(server.app.body_bytes(self.command, self.path, headers))
        with server.answering:
            response = server.app.respond(self.command, self.path, headers, body)
        # An unread body would be parsed as the next request.
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self.close_connection = self.close_connection or has_body
        self._write(response)

    def _write(self, response: Response) -> None:
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", response.kind)
        if isinstance(response.body, bytes):
            self.send_header("Content-Length", str(len(response.body)))
            pieces = iter([response.body])
        else:
            self.close_connection = True  # unknown length: closing ends the body
            pieces = response.body
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for piece in pieces:
                self.wfile.write(piece)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: URLs may contain the token."""


class _Server(ThreadingHTTPServer):
    app: App
    daemon_threads = True
    # A second server on the same port must fail instead of sharing it.
    allow_reuse_port = False
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answering = threading.BoundedSemaphore(MOST_ANSWERS)
        self._changing = threading.Lock()
        self._open: dict[Any, int] = {}
        """State by connection, least recently used first: 0 no request, 1 idle, 2 responding."""

    @contextmanager
    def responding(self, connection: Any) -> Iterator[None]:
        """Mark a connection as responding inside the block."""
        self._move(connection, 2)
        try:
            yield
        finally:
            self._move(connection, 1)

    def _move(self, connection: Any, state: int) -> None:
        with self._changing:
            if self._open.pop(connection, None) is not None:
                self._open[connection] = state

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            while len(self._open) >= MOST_CONNECTIONS:
                oldest = min(self._open, key=lambda connection: self._open[connection])
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends
            self._open[request] = 0
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class Explorer:
    """Web explorer over run folders; `serve_forever` blocks, `close` ends it."""

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        self.runs, self.left_out = open_runs(folders)
        self._server = _bind(host, port)
        self.port = int(self._server.server_address[1])
        self.guard: Guard = make_guard(host, self.port, allow_hosts, token)
        self._server.app = App(self.runs, self.guard, self.left_out)
        for run in self.runs.values():
            run.start()

    def warm(self) -> None:
        """Prepare what-if estimates in background threads."""
        for run in self.runs.values():
            if isinstance(run, SearchRun):
                threading.Thread(target=run.warm, name=f"warm {run.name}", daemon=True).start()

    @property
    def address(self) -> str:
        """URL to open in a browser."""
        name = self.guard.address
        if name in ("0.0.0.0", "::"):
            name = socket.gethostname()
        name = f"[{name}]" if ":" in name else name
        token = "" if self.guard.token is None else f"?token={self.guard.token}"
        return f"http://{name}:{self.port}/{token}"

    def serve_forever(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        for run in self.runs.values():
            run.stop()
        self._server.shutdown()
        self._server.server_close()


def _bind(host: str, port: int) -> _Server:
    kind = _Server6 if ":" in host else _Server
    try:
        return kind((host, port), _Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AtollError(
                f"port: {port} is in use on {host}; give another with --port, or 0 for a free one."
            ) from None
        if error.errno == errno.EACCES:
            raise AtollError(f"port: {port} needs privileges; give one above 1023.") from None
        raise AtollError(
            f"host: {host} cannot be bound ({error.strerror or error}); give an address of this "
            "machine."
        ) from None
    except OverflowError:
        raise AtollError(f"port: expected 0 to 65535, got {port}.") from None
