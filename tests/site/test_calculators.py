"""Calculators of lessons: in the browser as in the lesson's own cells."""

import json
import math
import random

import pytest

from book import asking, played
from tests.conftest import BOOK, EDITIONS
from tests.site.reading import LOOKS, violations

CELLS = [(lesson.id, cell.id) for lesson in BOOK.lessons for cell in lesson.code if "calculator" in cell.metadata]


def found(id, cell):
    lesson = BOOK.page(id)
    return lesson, next(each for each in lesson.code if each.id == cell)


def test_there_are_four_in_each_edition():
    assert len(CELLS) == 4 * len(EDITIONS)


def drawn(about, presets, number):
    """Random inputs: those that the calculator begins with or a preset has, each times a random power of ten."""
    draw = random.Random(number)
    begun = {each["name"]: each["value"] for each in about["inputs"]}
    given = {**begun, **(draw.choice(list(presets.values())) if presets and draw.random() < 0.5 else {})}
    values = []
    for each in about["inputs"]:
        value = given[each["name"]]
        if isinstance(value, bool):
            values.append(draw.random() < 0.5)
        elif "choices" in each:
            values.append(draw.choice(list(each["choices"])))
        else:
            value *= 10 ** draw.uniform(-1.5, 1.5)
            before = dict(zip(given, values, strict=False))
            least, most = each.get("least", 0), each.get("most", 1_000_000_000)
            least, most = before.get(least, least), before.get(most, most)
            value = max(math.ceil(least), round(value)) if isinstance(each["value"], int) else max(least, value)
            values.append(min(value, most))
    return values


@pytest.mark.parametrize("id, cell", CELLS)
def test_a_calculator_counts_as_its_cell(visit, run, id, cell):
    """On a thousand random inputs."""
    lesson, described = found(id, cell)
    about = described.metadata["calculator"]
    values = asking.values_of(described, run.cells[id][cell].outputs)["calculator"]
    space = {"math": math, **dict(zip(about.get("values", []), values, strict=False))}
    defined = played.functions(lesson)
    exec("\n".join(defined[name] for name in about["functions"]), space)
    inputs = [drawn(about, values[-1] if "presets" in about else None, number) for number in range(1000)]
    names = ", ".join(each["name"] for each in about["inputs"])
    counted = eval(f"lambda {names}: [{', '.join(each['value'] for each in about['results'])}]", space)
    expected = [counted(*values) for values in inputs]
    page = visit(f"{id}.html")
    got = page.evaluate("([id, inputs]) => inputs.map((values) => calculators[id](...values))", [cell, inputs])
    assert len({str(each) for each in expected}) > 5, "the inputs are not all alike"
    for values, mine, theirs in zip(inputs, expected, got, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a == pytest.approx(b, rel=1e-9) if isinstance(a, float) else a == b, values


def test_what_does_not_count_is_said_in_words(visit):
    page = visit("en/13_memory.html")
    box = page.locator("#calculator-yours")
    said = []
    for name, text in [("billions", "70b"), ("rows", "99999999999999999999"), ("gpus", "100001"), ("width", "1e9")]:
        field = box.locator(f'input[name="{name}"]')
        good = field.input_value()
        field.fill(text)
        said.append(box.locator('[role="alert"]').inner_text())
        field.fill(good)
    assert said == [
        "Parameters, billions: write a number from 0.000001 to 1,000,000,000.",
        "Rows of the whole batch: write a whole number from 1 to 1,000,000,000.",
        "GPUs: write a whole number from 1 to 100,000.",
        "",
    ]


def test_a_part_is_not_more_than_the_whole(visit):
    """With 20 of 16 bytes, DDP took 254 GB, and nothing was said."""
    box = visit("en/13_memory.html").locator("#calculator-yours")
    box.locator('input[name="gradient"]').fill("20")
    said = "Of these, bytes of the gradient (0 if there is none): write a number from 0 to 16."
    assert box.locator('[role="alert"]').inner_text() == said
    box.locator('input[name="bytes_each"]').fill("24")
    assert box.locator('[role="alert"]').inner_text() == ""


@pytest.mark.parametrize(
    "memory, fits",
    [
        ("80", "FSDP2, FSDP2 with offload"),
        ("24", "FSDP2 with offload"),
        ("8", "nothing; try more GPUs, fewer rows, or checkpointing"),
    ],
)
def test_what_fits_is_said(visit, memory, fits):
    box = visit(f"en/13_memory.html#calculator-yours?memory={memory}").locator("#calculator-yours")
    assert box.locator("dd").last.inner_text() == fits


def test_what_depends_on_nothing_is_not_listed(visit):
    """Half of 175 operators, no whole number, was “–”; and no batch changes from which batch on it pays."""
    box = visit("en/09_cost.html").locator("lesson-calculator")
    box.locator("select").select_option("ResNet-50")
    rows = box.locator("tbody th").all_inner_texts()
    assert "Operators in forward" in rows and "Your batch, rows" not in rows
    assert "–" not in box.locator("tbody").inner_text()


@pytest.mark.parametrize(
    "edition, said", [("en", "from 0 to 1,000,000,000."), ("zh", "要写 0 到 1,000,000,000 之间的数。")]
)
def test_no_number_is_so_large(visit, edition, said):
    box = visit(f"{edition}/09_cost.html").locator("lesson-calculator")
    box.locator('input[name="weights"]').fill("1e300")
    assert box.locator('[role="alert"]').inner_text().endswith(said)


@pytest.mark.parametrize(
    "situation, tool, each",
    [
        ("billions=70&machines=2", "tensor parallelism + pipeline", "70.6 GB"),
        ("billions=1&passes=150", "tensor + sequence parallelism", "20.8 GB"),
        ("billions=7&machines=4", "HSDP", "24 GB"),
    ],
)
def test_the_number_beside_the_tool_is_the_one_it_goes_by(visit, situation, tool, each):
    box = visit(f"en/17_choose.html#calculator-table?{situation}").locator("lesson-calculator")
    assert box.locator("dd").all_inner_texts()[:3] == [tool, each, "72 GB"]


@pytest.mark.parametrize("width", [390, 1280])
def test_an_address_leads_to_its_calculator_and_names_the_known_example(visit, width):
    """At 1280 px, the first fields were above the window; and ResNet-50 was "your own"."""
    values = "weights=102.2&flop=24.3&operators=227&row_in=602&row_out=4&rate=100&gpus=4&rows=7000"
    page = visit(f"en/09_cost.html#calculator-your-model?{values}", viewport={"width": width, "height": 900})
    page.wait_for_load_state("load")
    box = page.locator("lesson-calculator")
    page.wait_for_function(
        "box => 0 <= box.getBoundingClientRect().y && box.getBoundingClientRect().y < 150", arg=box.element_handle()
    )
    assert box.locator("select").input_value() == "ResNet-50"


@pytest.mark.parametrize("text, counts", [("80 GB", True), ("８０", True), ("80。5", True), ("80 TB", False)])
def test_a_number_with_the_unit_of_its_field(visit, text, counts):
    box = visit("zh/13_memory.html").locator("#calculator-yours")
    box.locator('input[name="memory"]').fill(text)
    assert (box.locator('[role="alert"]').inner_text() == "") == counts


def test_a_table_without_rows_is_not_shown(visit):
    box = visit("en/09_cost.html").locator("lesson-calculator")
    box.locator("select").select_option("tiny")
    assert not box.locator(".calculator-table").is_visible()


def test_an_old_address_may_choose_what_there_is_no_more(visit):
    """The menu was empty, and the calculator answered as if nothing were wrong."""
    box = visit("en/17_choose.html#calculator-table?kind=of-old&gpus=2").locator("#calculator-table")
    assert box.locator("select").input_value() == "adam" and box.locator('input[name="gpus"]').input_value() == "2"


def test_no_table_stands_without_its_numbers(visit):
    box = visit("en/09_cost.html").locator("lesson-calculator")
    table, field = box.locator(".calculator-table"), box.locator(".calculator-inputs input").first
    good = field.input_value()
    for text, shown in (("many", False), (good, True)):
        field.fill(text)
        assert table.is_visible() == shown


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_calculator_waits_for_no_prediction(visit, edition):
    """Who has to choose today did not find it."""
    page = visit(f"{edition}/17_choose.html")
    box = page.locator("#calculator-table")
    assert box.is_visible() and not page.locator("#cell-table + ask-box .cell_output").first.is_visible()
    page.locator('ask-box[data-name="17_choose/table"] button').click()
    said = page.locator('ask-box[data-name="17_choose/table"] .ask-verdict').all_inner_texts()
    assert not any(box.locator("dd").first.inner_text() in words for words in said), "what it begins with is no answer"


@pytest.mark.parametrize("id, cell", CELLS)
def test_a_calculator_in_the_page(visit, id, cell):
    width, scheme = LOOKS[id.partition("/")[0]]
    page = visit(f"{id}.html#calculator-{cell}?gpus=4", viewport={"width": width, "height": 900}, color_scheme=scheme)
    box = page.locator(f"#calculator-{cell}")
    assert box.is_visible() and box.locator('input[name="gpus"]').input_value() == "4"
    before = box.locator("dd").all_inner_texts()
    assert all(before)
    box.locator('input[name="gpus"]').fill("32")
    page.wait_for_function("location.hash.includes('gpus=32')")
    assert box.locator('[role="status"]').inner_text()
    address = page.url
    after = box.locator("dd").all_inner_texts()
    page.goto("about:blank")
    page.goto(address)
    assert box.locator("dd").all_inner_texts() == after, "the address keeps all numbers"
    for nonsense in ("", "many", "-1", "0", "2.5", "1e400"):
        box.locator('input[name="gpus"]').fill(nonsense)
        assert box.locator('[role="alert"]').inner_text()
        assert box.locator('input[name="gpus"]').get_attribute("aria-invalid") == "true"
        assert {*box.locator("dd").all_inner_texts()} == {"–"}, "no result that belongs to other numbers"
    box.locator('input[name="gpus"]').fill("１６")
    assert not box.locator('[role="alert"]').inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("localStorage.setItem('show-all', 'true')")
    assert not violations(page, f"#calculator-{cell}")


def test_published_models_have_the_sizes_that_are_published(run):
    values = asking.values_of(found("en/13_memory", "yours")[1], run.cells["en/13_memory"]["yours"].outputs)[
        "calculator"
    ]
    sizes = {name: each["billions"] for name, each in values[-1].items()}
    assert sizes == {"Llama 3.2 1B": 1.236, "Llama 3.1 8B": 8.03, "Llama 3.1 70B": 70.554, "Llama 3.1 405B": 405.853}
    assert "8,030,261,248" in json.dumps(run.cells["en/13_memory"]["published"].outputs)


def test_without_scripts_there_is_no_calculator(browser, html):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{html.as_uri()}/en/17_choose.html")
    assert page.locator("lesson-calculator").count() == 1 and not page.locator("lesson-calculator").is_visible()
    context.close()
