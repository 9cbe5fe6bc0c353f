"""The mechanical rules of the Chinese edition: punctuation, spaces, bold, line breaks, capitals, terms.

Each rule is a pattern that must not be found, with an example that it must find.
"""

import io
import re
import tokenize

import pytest

from book.model import Lesson
from tests.conftest import BOOK, ROOT

PAGES = {**BOOK.editions["zh"].pages, "README.zh.md": None}

HAN = "[\u4e00-\u9fff]"
FULL = "[，。、；：？！（）“”《》…]"
WORD = "[A-Za-z0-9`]"

# name -> (what is wrong, an example of it); for every text, in a cell, a page, a comment or a printed line
RULES = {
    "half-width punctuation in a Chinese sentence": (rf"{HAN}[,;:?!]|[,;?!]{HAN}|{HAN} ?\(|\){HAN}", "切分后,再分发"),
    "half-width stop": (rf"{HAN}\.(\s|$)", "切分后再分发."),
    "straight quotation marks": (rf'{HAN}"|"{HAN}', '称为"副本"'),
    "no space between Chinese and Latin": (rf"{HAN}{WORD}|{WORD}{HAN}", "用GPU算"),
    "space beside full-width punctuation": (rf"(?<=[^\s|#]) +{FULL}(?!…)|{FULL} (?=[^\s|`])", "先切分 ，再分发"),
    "space between Chinese characters": (rf"{HAN} +{HAN}", "切分 规则"),
    "wrong capitals": (
        r"(?<![-/\"])\b(Pytorch|pytorch(?![#/.-])|cuda(?![:.\"])|Cuda|[Gg]pu|Numpy|Jupyter notebook)\b",
        "用 Pytorch 写",
    ),
    "polite or converted Chinese": (
        "您|(?<!申)请(?!求)|进行|当.{1,20}的?时候|让我们|它们?会?被",
        "当有多个 GPU 的时候",
    ),
    "counts of GPUs in characters": ("[两三四五六七八九十][个块张] ?(GPU|CUDA|设备|数据块)", "三个 GPU"),
}

# term that is not used -> the one that is
TERMS = {
    "批大小": "批量大小",
    "批处理": "批次",
    "分散(?!程度)": "分发",
    "散射": "分发",
    "汇集": "收集",
    "聚集": "收集",
    "规约": "归约",
    "集体通信": "集合通信",
    "世界大小": "进程总数",
    "固定内存": "锁页内存",
    "GPU 内存": "显存",
    "前向传递": "前向传播",
    "前向计算": "前向传播",
    "向后传": "反向传播",
    "后向传": "反向传播",
    "推断": "推理",
    "批量规范化": "批归一化",
    "批标准化": "批归一化",
    "自动求导": "自动微分",
    "梯度累加": "梯度累积",
    "管道": "流水线",
    "全切片": "完全分片",
    "封装": "包装",
    "包裹": "包装",
    "笔记本(?!电脑)": "notebook",
    "分割": "切分",
    "隐藏状态": "隐状态",
}


def prose(text):
    """A Markdown text as its reader sees it: without code blocks, formulas, labels, markup and addresses."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\([\w-]+\)=$|</?[a-z][^>]*>|^\|[-|: ]+\|$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[(.*?)\]\([^)]*\)", r"\1", text)
    return text


def without_code(text):
    """Inline code as the one character `, which counts as a Latin word."""
    return re.sub(r"(`+).+?\1|\$.+?\$", "`", text)


def markdown(name):
    """(where, Markdown text) of everything in a page that is written as such."""
    page = PAGES[name]
    if page is None:
        return [(name, (ROOT / name).read_text(encoding="utf-8"))]
    return [(page.where(cell), cell.source) for cell in page.cells if cell.kind == "markdown"]


def words_in_code(name):
    """(where, text) of every comment and every Chinese string of a lesson."""
    for cell in BOOK.editions["zh"].pages[name].code:
        source = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield cell.id, token.string
            elif token.string.startswith('"""') and "import " in token.string:  # a script, written to a file
                yield from ((cell.id, comment) for comment in re.findall("#.*", token.string))
            elif token.type == tokenize.STRING and re.search(HAN, token.string):
                yield cell.id, printed(token.string)


def printed(string):
    """The words of a string as they are printed; a value in them is the one character `."""
    return re.sub(r"\{[^{}]*\}", "`", re.sub(r"\\[nt]", "\n", string).strip("rf'\""))


def test_every_rule_finds_its_example():
    for name, (pattern, example) in RULES.items():
        assert re.search(pattern, example), name


TEXTS = pytest.mark.parametrize("name", PAGES)
CODE = pytest.mark.parametrize("name", [name for name, page in PAGES.items() if isinstance(page, Lesson)])


@TEXTS
def test_text(name):
    texts = [(where, without_code(prose(text)).replace("*", "")) for where, text in markdown(name)]
    assert not {rule: found for rule, (pattern, _) in RULES.items() if (found := violations(pattern, texts))}


@CODE
def test_words_in_code(name):
    texts = list(words_in_code(name))
    assert not {rule: found for rule, (pattern, _) in RULES.items() if (found := violations(pattern, texts))}


def violations(pattern, texts):
    """Where a pattern is found, with a little of what stands around it."""
    return [
        f"{where}: {text[max(0, found.start() - 12) : found.end() + 12]!r}"
        for where, text in texts
        for found in re.finditer(pattern, text, re.MULTILINE)
    ]


def without_what_readers_type(text):
    """Without what is there to be searched for: the headings of questions, the glossary's other names, in emphasis."""
    return re.sub(r"(?<!\*)\*[^*\n]+\*(?!\*)|(?<=^\(q-).*\n##+ .*", "", text, flags=re.MULTILINE)


@TEXTS
def test_terms(name):
    texts = [(where, without_what_readers_type(text)) for where, text in markdown(name)]
    texts += words_in_code(name) if isinstance(PAGES[name], Lesson) else []
    assert not {f"use {use}": found for term, use in TERMS.items() if (found := violations(term, texts))}


# The text of a bold part, told from the text between two of them by the words or marks that stand outside.
BOLD_ENDS = rf"(?m)^(?:[^*\n]*\*\*[^*\n]*\*\*)*?[^*\n]*\*\*(?:{FULL}[^*\n]*|[^*\n]*{FULL})\*\*"


@TEXTS
def test_bold_ends_on_words(name):
    texts = [(where, re.sub(r"`[^`\n]+`", "`", prose(text))) for where, text in markdown(name)]
    assert not violations(BOLD_ENDS, texts)


@TEXTS
def test_a_paragraph_is_one_line(name):
    texts = [(where, prose(text)) for where, text in markdown(name)]
    assert not violations(rf"({HAN}|{FULL}|`)\n(?=[^\s#>|*:\d-])", texts)


@TEXTS
def test_no_stop_after_headings_and_table_cells(name):
    assert not violations(r"^#+ .*。$|。 *\|", [(where, prose(text)) for where, text in markdown(name)])


@CODE
def test_comments_are_chinese(name):
    comments = [(where, text) for where, text in words_in_code(name) if text.startswith("#")]
    assert not [text for _, text in comments if re.search("[a-z]{4}", text) and not re.search(HAN, text)]
    assert not violations("^#.*。$", comments), "no stop after a comment"
