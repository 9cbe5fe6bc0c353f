"""Asks for every page of another site that the sources link to: python -m tools.check_links

Kind to servers: one request at a time for each host, a pause between them, HEAD first, and no page asked for twice.
A host that refuses robots (403, 429) counts as there. Exit code 1 if a page is gone.
"""

import re
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "notebooks/*/*.ipynb", "notebooks/*/*.md")
PAUSE = 1.0  # seconds between two requests to one host
AGENT = {"User-Agent": "link check of the book One Model, Many GPUs"}


def links():
    """Address -> the files that link to it."""
    found = defaultdict(set)
    for path in [path for pattern in PAGES for path in ROOT.glob(pattern)]:
        for address in re.findall(r"\]\((https?://[^)\s#]+)", path.read_text(encoding="utf-8")):
            found[address].add(path.relative_to(ROOT).as_posix())
    return found


def gone(address):
    """Why a page cannot be had, or None."""
    reason = None
    for method in ("HEAD", "GET"):
        try:
            request = urllib.request.Request(address, headers=AGENT, method=method)
            with urllib.request.urlopen(request, timeout=20):
                return None
        except urllib.error.HTTPError as error:
            if error.code in (403, 429):
                return None
            reason = f"HTTP {error.code}"
        except OSError as error:
            reason = str(error)
        time.sleep(PAUSE)
    return reason


def ask(addresses):
    """The addresses of one host that are gone, with the reasons."""
    answers = []
    for address in addresses:
        answers.append((address, gone(address)))
        time.sleep(PAUSE)
    return [(address, reason) for address, reason in answers if reason]


def main():
    found = links()
    hosts = defaultdict(list)
    for address in sorted(found):
        hosts[urlsplit(address).netloc].append(address)
    with ThreadPoolExecutor(8) as pool:
        dead = [entry for answers in pool.map(ask, hosts.values()) for entry in answers]
    for address, reason in dead:
        print(f"{address}: {reason} (in {', '.join(sorted(found[address]))})")
    print(f"{len(found)} pages asked for, {len(dead)} gone")
    sys.exit(bool(dead))


if __name__ == "__main__":
    main()
