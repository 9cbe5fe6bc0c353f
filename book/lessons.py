"""The sources of the book: lessons (notebooks) and pages (Markdown), in two editions."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
EDITIONS = ("en", "zh")
CELL_ANCHOR = "cell-"  # a link to LESSON.ipynb#cell-ID leads to the code cell with this id


class BookError(Exception):
    """Something that the author or reader can mend; its text says where and how."""


@dataclass(frozen=True, order=True)
class Lesson:
    """One notebook of one edition."""

    name: str
    edition: str

    @property
    def path(self):
        return ROOT / "notebooks" / self.edition / f"{self.name}.ipynb"

    @property
    def id(self):
        return f"{self.edition}/{self.name}"


def config():
    """_config.yml as a dict."""
    return read_yaml(ROOT / "_config.yml")


def toc():
    """_toc.yml as a dict; its files are those of the English edition."""
    return read_yaml(ROOT / "_toc.yml")


def read_yaml(path):
    try:  # the loader in C, if there is one, is ten times as fast
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except FileNotFoundError:
        raise BookError(f"{shown(path)}: no such file") from None
    except yaml.YAMLError as error:
        raise BookError(f"{shown(path)}: not valid YAML: {' '.join(str(error).split())}") from None


def toc_files():
    """The files that _toc.yml names, in reading order, without their endings."""

    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("root", "file"):
                    yield value
                else:
                    yield from walk(value)
        elif isinstance(node, list):
            for item in node:
                yield from walk(item)

    return list(walk(toc()))


def lesson_names():
    """Names of the lessons in reading order."""
    return [Path(file).name for file in toc_files() if file.startswith("notebooks/")]


def page_names():
    """Names of the Markdown pages in reading order."""
    return [Path(file).name for file in toc_files() if file.startswith("book/pages/")]


def page_path(name, edition):
    return ROOT / "book" / "pages" / edition / f"{name}.md"


def select(names=(), editions=EDITIONS):
    """The lessons with these names (all, if none are named) in these editions."""
    known = lesson_names()
    names = [Path(name).stem for name in names]
    for name in names:
        if name not in known:
            raise BookError(f"no lesson is called {name}; there are: {', '.join(known)}")
    return [Lesson(name, edition) for name in known for edition in editions if not names or name in names]


def read_notebook(path):
    """A notebook as a plain dict, in which every cell's source is one string."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            for key in ("id", "cell_type", "metadata"):
                cell[key]  # a cell of format 4.5 has all three
        return notebook
    except FileNotFoundError:
        raise BookError(f"{shown(path)}: no such file, though _toc.yml names this lesson") from None
    except UnicodeDecodeError as error:
        raise BookError(f"{shown(path)}: not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise BookError(f"{shown(path)}: not a notebook: {error}") from None
    except (KeyError, TypeError) as error:
        raise BookError(f"{shown(path)}: not a notebook of format 4.5 ({error})") from None


def text_hash(text):
    """What a translation remembers of the English text that it translates."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def front_matter(text):
    """The YAML block at the top of a Markdown page as a dict, and the rest of the page."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return (yaml.safe_load(match[1]), text[match.end() :]) if match else ({}, text)


def behind(name):
    """Ids of the Chinese cells whose English text has changed since they were translated."""
    english = {cell["id"]: text_hash(cell["source"]) for cell in read_notebook(Lesson(name, "en").path)["cells"]}
    chinese = read_notebook(Lesson(name, "zh").path)["cells"]
    return [cell["id"] for cell in chinese if cell["metadata"].get("translates") != english.get(cell["id"])]


def page_is_behind(name):
    """Whether the English page has changed since the Chinese one was translated."""
    english = page_path(name, "en").read_text(encoding="utf-8")
    head, _ = front_matter(page_path(name, "zh").read_text(encoding="utf-8"))
    return head.get("translates") != text_hash(english)


def shown(path):
    """A path as messages show it: relative to the repository."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
