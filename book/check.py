"""Checks the sources: they are whole, tidy, and the two editions agree.

Two notebooks are a pair if their cells have the same ids in the same order, of
the same kinds, with the same labels and links, and the same code once comments
and the contents of strings are masked: a printed word may be translated, a
variable may not.
"""

import ast
import json
import re
from functools import cache

from .lessons import (
    CELL_ANCHOR,
    EDITIONS,
    ROOT,
    BookError,
    Lesson,
    behind,
    front_matter,
    lesson_names,
    page_is_behind,
    page_names,
    page_path,
    read_notebook,
    select,
    shown,
    text_hash,
    toc_files,
)
from .runs import recorded
from .runs import stale as stale_cells

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
TERM = re.compile(r'<span id="([\w-]+)">')  # what the glossary has in place of labels
LINK = re.compile(r"\]\(([^)\s]+)\)")


def check():
    """Raises BookError with a line for each problem; returns what is no error but worth a line."""
    problems = structure()
    if not problems:
        for name in lesson_names():
            for edition in EDITIONS:
                problems += hygiene(Lesson(name, edition))
            problems += pair(name)
        for name in page_names():
            problems += page_pair(name)
        problems += links()
    if problems:
        raise BookError("\n".join(problems))
    return stale()


def structure():
    """Problems of _toc.yml against the files."""
    problems = []
    if len(set(toc_files())) < len(toc_files()):
        problems.append("_toc.yml: a file is named twice")
    named = {"notebooks": set(lesson_names()), "book/pages": set(page_names())}
    for folder, ending in (("notebooks", ".ipynb"), ("book/pages", ".md")):
        for edition in EDITIONS:
            found = {path.stem for path in (ROOT / folder / edition).glob(f"*{ending}")}
            for name in sorted(named[folder] - found):
                problems.append(f"{folder}/{edition}/{name}{ending}: no such file, though _toc.yml names it")
            for name in sorted(found - named[folder]):
                problems.append(f"{folder}/{edition}/{name}{ending}: not in _toc.yml; add it there, or remove the file")
    return problems


def hygiene(lesson):
    """What should not be in a committed notebook. `python -m book tidy` mends all of it."""
    notebook = read_notebook(lesson.path)
    problems = []
    for cell in notebook["cells"]:
        if cell.get("outputs") or cell.get("execution_count"):
            problems.append(f"{shown(lesson.path)}, cell {cell['id']}: has outputs; run: python -m book tidy")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", cell["id"]):
            problems.append(
                f"{shown(lesson.path)}, cell {cell['id']}: name the cell for what it does, as in wrap-model"
            )
    ids = [cell["id"] for cell in notebook["cells"]]
    for id in sorted({id for id in ids if ids.count(id) > 1}):
        problems.append(f"{shown(lesson.path)}, cell {id}: two cells have this id")
    if not problems and lesson.path.read_text(encoding="utf-8") != tidied(notebook):
        problems.append(f"{shown(lesson.path)}: not as tidy writes it; run: python -m book tidy")
    return problems


def tidied(notebook):
    """The text of a notebook without outputs, execution counts and editor metadata."""
    cells = []
    for cell in notebook["cells"]:
        kept = {key: value for key, value in cell["metadata"].items() if key in ("tags", "mystnb", "translates")}
        cell = {**cell, "metadata": kept, "source": cell["source"].splitlines(keepends=True)}
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
        cell.pop("attachments", None)
        cells.append(cell)
    whole = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def tidy(lessons):
    """Writes each notebook as `tidied` has it."""
    for lesson in lessons:
        lesson.path.write_text(tidied(read_notebook(lesson.path)), encoding="utf-8")


def translated(name, cells):
    """Notes in the Chinese lesson that these cells (all, if none are named) translate the English ones of today."""
    english = {cell["id"]: cell["source"] for cell in read_notebook(Lesson(name, "en").path)["cells"]}
    lesson = Lesson(name, "zh")
    notebook = read_notebook(lesson.path)
    unknown = set(cells) - set(english)
    if unknown:
        raise BookError(f"{shown(lesson.path)}: no such cell: {', '.join(sorted(unknown))}")
    for cell in notebook["cells"]:
        if cell["id"] in english and (not cells or cell["id"] in cells):
            cell["metadata"]["translates"] = text_hash(english[cell["id"]])
    lesson.path.write_text(tidied(notebook), encoding="utf-8")


def page_translated(name):
    """Notes in the Chinese page that it translates the English one of today."""
    path = page_path(name, "zh")
    _, text = front_matter(path.read_text(encoding="utf-8"))
    now = text_hash(page_path(name, "en").read_text(encoding="utf-8"))
    path.write_text(f'---\ntranslates: "{now}"\n---\n{text}', encoding="utf-8")


def pair(name):
    """Where the two editions of a lesson differ more than languages do."""
    english, chinese = (read_notebook(Lesson(name, edition).path)["cells"] for edition in EDITIONS)
    where = f"notebooks/*/{name}.ipynb"
    en_ids, zh_ids = ([cell["id"] for cell in cells] for cells in (english, chinese))
    if en_ids != zh_ids:
        lines = [f"{where}, cell {id}: only in the English edition" for id in en_ids if id not in zh_ids]
        lines += [f"{where}, cell {id}: only in the Chinese edition" for id in zh_ids if id not in en_ids]
        return lines or [f"{where}: the cells are not in the same order in both editions"]
    problems = []
    for en, zh in zip(english, chinese):
        if en["cell_type"] != zh["cell_type"]:
            problems.append(f"{where}, cell {en['id']}: {en['cell_type']} in English, {zh['cell_type']} in Chinese")
        elif en["cell_type"] == "code":
            problems += code_pair(f"{where}, cell {en['id']}", en["source"], zh["source"])
        else:
            problems += text_pair(f"{where}, cell {en['id']}", en["source"], zh["source"])
        if en["metadata"].get("tags") != zh["metadata"].get("tags"):
            problems.append(f"{where}, cell {en['id']}: the tags differ")
    return problems


def code_pair(where, english, chinese):
    try:
        same = masked(english) == masked(chinese)
    except SyntaxError as error:
        return [f"{where}: {error.msg} (line {error.lineno})"]
    return [] if same else [f"{where}: the code differs in more than comments and strings"]


@cache
def masked(code):
    """The syntax tree of a cell as text, with the contents of strings masked."""
    if re.search(r"^\s*[%!]", code, re.MULTILINE):  # what IPython alone understands
        from IPython.core.inputtransformer2 import TransformerManager

        code = TransformerManager().transform_cell(code)

    class Mask(ast.NodeTransformer):
        def visit_Constant(self, node):
            return ast.Constant("") if isinstance(node.value, str) else node

        def visit_JoinedStr(self, node):
            # Languages differ in word order: the formatted values count, their places do not.
            values = [self.visit(value) for value in node.values if isinstance(value, ast.FormattedValue)]
            return ast.JoinedStr(sorted(values, key=ast.dump))

    return ast.dump(Mask().visit(ast.parse(code)))


def text_pair(where, english, chinese):
    problems = []
    if any(pattern.findall(english) != pattern.findall(chinese) for pattern in (LABEL, TERM)):
        problems.append(f"{where}: the labels differ")
    if targets(english) != targets(chinese):
        problems.append(f"{where}: the links differ")
    blocks = [re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
    if len(blocks[0]) != len(blocks[1]):
        problems.append(f"{where}: not the same number of code blocks")
    for en, zh in zip(*blocks):
        problems += code_pair(where, en, zh)
    return problems


def targets(text):
    """The links of a text, in either edition the same."""
    return sorted(re.sub(r"/(en|zh)/", "/*/", link) for link in LINK.findall(text))


def page_pair(name):
    texts = [page_path(name, edition).read_text(encoding="utf-8") for edition in EDITIONS]
    return text_pair(f"book/pages/*/{name}.md", *texts)


def sources():
    """Every text of the book: (path, where it stands, text)."""
    for edition in EDITIONS:
        for name in page_names():
            path = page_path(name, edition)
            yield path, shown(path), path.read_text(encoding="utf-8")
        for name in lesson_names():
            path = Lesson(name, edition).path
            for cell in read_notebook(path)["cells"]:
                if cell["cell_type"] == "markdown":
                    yield path, f"{shown(path)}, cell {cell['id']}", cell["source"]


def links():
    """Links to files, labels or cells that do not exist."""
    problems = []
    labels = {edition: set() for edition in EDITIONS}
    places = {}  # path -> the labels and cells in it, to which a link can lead
    for path, where, text in sources():
        for label in LABEL.findall(text):
            if label in labels[path.parent.name]:
                problems.append(f"{where}: the label {label} is given twice")
            labels[path.parent.name].add(label)
        places.setdefault(path, set()).update(LABEL.findall(text), TERM.findall(text))
    for lesson in select():
        cells = [cell["id"] for cell in read_notebook(lesson.path)["cells"] if cell["cell_type"] == "code"]
        places.setdefault(lesson.path, set()).update(CELL_ANCHOR + id for id in cells)
    for path, where, text in sources():
        for link in LINK.findall(text):
            file, _, place = link.partition("#")
            target = (path.parent / file).resolve()
            if "://" in link:
                continue
            if not target.exists():
                problems.append(f"{where}: no file {file}")
            elif not file and place not in labels[path.parent.name]:
                problems.append(f"{where}: no label {place}")
            elif file and place and place not in places.get(target, ()):
                problems.append(f"{where}: nothing is called {place} in {file}")
    return problems


def stale():
    """Translations whose English text has changed since, and recorded outputs whose code has."""
    lines = [
        f"runs/{run.name}.json: {lesson}, cell {cell}: recorded from an older version of the cell"
        for run in recorded()
        for lesson, cell in stale_cells(run)
    ]
    for name in lesson_names():
        for cell in behind(name):
            lines.append(
                f"notebooks/zh/{name}.ipynb, cell {cell}: the English text has changed; "
                f"when it is translated, run: python -m book translated {name} {cell}"
            )
    for name in page_names():
        if page_is_behind(name):
            lines.append(
                f"book/pages/zh/{name}.md: the English text has changed; "
                f"when it is translated, run: python -m book translated {name}"
            )
    return lines
