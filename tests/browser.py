"""Chromium, driven by Playwright, for the tests that look at pages as a reader does."""

import contextlib
import fcntl
import functools
import http.server
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = Path(__file__).with_name("requirements-browser.txt")


def _installed(command: list[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def find() -> tuple[str, object]:
    """Chromium's path and Playwright's module; installs what is missing, where that is allowed.

    Skips the test, with the reason, if that fails.
    """
    with open(Path(tempfile.gettempdir(), f"apt-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test at a time installs
        if not _chromium() and os.getuid() == 0 and shutil.which("apt-get"):
            _installed(["apt-get", "update", "-q"])
            _installed(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"])
        if not _chromium():
            pytest.skip(
                "no Chromium here, and it cannot be installed (Debian: apt install chromium)"
            )
        if importlib.util.find_spec("playwright") is None:
            _installed([sys.executable, "-m", "pip", "install", "-q", "-r", str(NEEDED)])
            importlib.invalidate_caches()
        if importlib.util.find_spec("playwright") is None:
            pytest.skip(f"Playwright cannot be installed (pip install -r {NEEDED.name})")
    return _chromium(), importlib.import_module("playwright.sync_api")


@contextlib.contextmanager
def opened():
    """A headless browser."""
    path, playwright = find()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(folder):
    """The address at which a server of this test serves a folder."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
