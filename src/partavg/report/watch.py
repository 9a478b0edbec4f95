"""The same page while runs go on: served to this machine only, built anew when files change."""

from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from partavg.folder import RunFolder
from partavg.report.page import page
from partavg.report.runs import ShownRun, find, load, named

HOST = "127.0.0.1"

Stamp = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of the files of a run."""


class Watcher:
    """The page of the runs in a folder, as they are now."""

    def __init__(self, folder: Path, every: float) -> None:
        self._folder, self._every = folder, every
        self._lock = Lock()
        self._stamps: dict[Path, Stamp] | None = None
        self._runs: dict[Path, ShownRun] = {}
        self._page = b""

    def page(self) -> bytes:
        """The page; runs that did not change are not read again."""
        with self._lock:
            stamps = {path: _stamp(path) for path in find(self._folder)}
            if stamps != self._stamps:
                old = self._stamps or {}
                runs = {}
                for path, names in named(list(stamps)).items():
                    known = self._runs.get(path)
                    same = known and (known.name, known.group) == names
                    fresh = not same or stamps[path] != old.get(path)
                    runs[path] = load(path, *names) if fresh or not known else known
                self._page = page(list(runs.values()), refresh=self._every).encode()
                self._runs, self._stamps = runs, stamps
            return self._page


def _stamp(path: Path) -> Stamp:
    folder = RunFolder(path)
    files = (folder.config_path, folder.environment_path, folder.metrics_path,
             folder.summary_path, folder.split_path)  # fmt: skip
    found = [(file.name, file.stat()) for file in files if file.exists()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def server(make: Callable[[], bytes], port: int) -> ThreadingHTTPServer:
    """A server of one page on this machine; port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "partavg", ""
        timeout = 30

        def do_GET(self) -> None:
            """Answer with the page, or with nothing if the browser has it already."""
            own = served.server_port
            # A page of another site may make its name point here; the name gives it away.
            if self.headers.get("Host") not in (f"{HOST}:{own}", f"localhost:{own}"):
                self._answer(HTTPStatus.FORBIDDEN, b"open this page at its own address\n")
                return
            if self.path != "/":
                self._answer(HTTPStatus.NOT_FOUND, b"there is one page only, at /\n")
                return
            try:
                text = make()
            except (ValueError, OSError) as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
                return
            tag = f'"{sha256(text).hexdigest()[:32]}"'
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
            else:
                self._answer(HTTPStatus.OK, text, tag)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server asks for

        def _answer(self, status: HTTPStatus, body: bytes, tag: str = "") -> None:
            self.send_response(status)
            kind = "html" if status is HTTPStatus.OK else "plain"
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a page that looks for news would fill the terminal."""

    try:
        served = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"port {port} cannot be used ({error}): give another --port, or 0 for any that is free"
        ) from None
    served.daemon_threads = True
    return served
