"""What a page of the site weighs, beside a stock Jupyter Book made of the same sources.

Run it after `make book`:  .venv/bin/python -m tools.benchmark_site [LESSON …]

Both sites are served with gzip and opened in Chromium as on a first visit, on a phone's screen with a
processor slowed down fourfold. Blocked time is what long tasks take beyond 50 ms each, until the page is quiet.
"""

import gzip
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread

import yaml
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from tools.browser import launch

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 3

LONG_TASKS = """
window.blocked = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.blocked += Math.max(0, task.duration - 50);
}).observe({ type: "longtask", buffered: true });
"""


class GzipHandler(SimpleHTTPRequestHandler):
    """Counts what it sends: (path, bytes)."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        body = path.read_bytes()
        kind = self.guess_type(path)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if kind.startswith("text/") or kind.endswith(("javascript", "json", "svg+xml")):
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.sent.append((self.path, len(body)))

    def log_message(self, *arguments):
        pass


def stock_book(target):
    """A Jupyter Book with its own theme, made of the executed English edition; returns the folder of its pages."""
    shutil.copytree(ROOT / "notebooks" / "en", target)
    for path in (ROOT / "_build" / "run" / "en").glob("*.ipynb"):
        shutil.copy(path, target)
    shutil.copy(ROOT / "_toc.yml", target)
    config = {"title": "Stock", "execute": {"execute_notebooks": "off"}, "only_build_toc_files": True}
    (target / "_config.yml").write_text(yaml.safe_dump(config))
    subprocess.run([ROOT / ".venv/bin/jupyter-book", "build", target, "-q"], check=True, capture_output=True)
    return target / "_build" / "html"


def visit(browser, folder, page):
    """One first visit: (requests to the site, to other hosts, bytes without figures, bytes of figures, ms blocked)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(GzipHandler, directory=folder))
    server.sent, elsewhere = [], []
    Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/"
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    tab.add_init_script(LONG_TASKS)
    tab.on("request", lambda request: request.url.startswith((here, "data:")) or elsewhere.append(request.url))
    context.new_cdp_session(tab).send("Emulation.setCPUThrottlingRate", {"rate": 4})
    tab.goto(here + page)
    tab.wait_for_timeout(3000)
    blocked = tab.evaluate("window.blocked")
    context.close()
    server.shutdown()
    figures = sum(size for path, size in server.sent if "_images/" in path)
    return len(server.sent), len(elsewhere), sum(size for _, size in server.sent) - figures, figures, blocked


def main(lessons):
    table = Table("page", "site", "requests", "to other hosts", "KiB without figures", "KiB of figures", "ms blocked")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        sites = {"this book": ROOT / "_build" / "html" / "en", "stock": stock_book(Path(folder) / "stock")}
        browser = launch(playwright)
        for lesson in lessons:
            visits = {name: [] for name in sites}
            for _ in range(REPEATS):  # alternating, so that both meet the same disturbances
                for name, site in sites.items():
                    visits[name].append(visit(browser, site, f"{lesson}.html"))
            for name, seen in visits.items():
                requests, elsewhere, rest, figures, blocked = (median(column) for column in zip(*seen, strict=True))
                numbers = (requests, elsewhere, rest / 1024, figures / 1024, blocked)
                table.add_row(lesson, name, *(f"{number:.0f}" for number in numbers))
        browser.close()
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or ["04_data_parallel", "05_four_steps"])
