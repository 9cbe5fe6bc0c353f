"""Predictions and exercises, answered in the page."""

import json
import re

import pytest

from book import asking
from book.sources import load
from tests.conftest import BOOK, LESSONS
from tests.site.reading import LOOKS, soup, violations

FIRST = "04_data_parallel/run-2"  # rows on two GPUs: [15, 15] and [5, 5]


def box(page, name=FIRST):
    return page.locator(f'ask-box[data-name="{name}"]')


def answer(page, *texts, name=FIRST):
    """Answers by keyboard alone, in the place of what was answered before."""
    for field in box(page, name).get_by_role("textbox").all():
        field.fill("")
    fields = box(page, name).locator("input")
    fields.first.focus()
    for text in texts:
        page.keyboard.type(text)
        if text is not texts[-1]:
            page.keyboard.press("Tab")
    page.keyboard.press("Enter")


def said(page, name=FIRST):
    return box(page, name).locator(".ask-verdict").all_inner_texts()


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_truth_is_what_the_notebook_found(run, html, lesson):
    forms = soup(html / f"{lesson}.html").find_all("ask-box")
    found = {form["data-name"]: [each["right"] for each in json.loads(form["data-truths"])] for form in forms}
    expected = {}
    for cell in BOOK.page(lesson).code:
        name = f"{lesson.partition('/')[2]}/{cell.id.removesuffix('-check')}"
        values = asking.values_of(cell, run.cells[lesson][cell.id].outputs).get("ask", [])
        if questions := list(zip(asking.questions(cell), values, strict=True)):
            expected[name] = [value if question.get("any") else [value] for question, value in questions]
    assert json.loads(json.dumps(expected)) == found != {}


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_prediction_asks(html, lesson):
    marks = soup(html / f"{lesson}.html").select("p.predict, ask-box:not([data-exercise])")
    assert [mark.name for mark in marks] == ["p", "ask-box"] * (len(marks) // 2) != []


@pytest.mark.parametrize(
    "edition, right, wrong",
    [
        ("en", "✓ Right.", "✗ It is 5, 5; you have 1 of 2 in place."),
        ("zh", "✓ 答对了。", "✗ 结果是 5, 5，你写的有 1 个在正确的位置上（共 2 个）。"),
    ],
)
def test_a_prediction_is_made_before_the_answer_is_seen(visit, edition, right, wrong):
    width, scheme = LOOKS[edition]
    page = visit(f"{edition}/04_data_parallel.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
    output = box(page).locator(".cell_output").first
    assert not output.is_visible()
    assert page.locator("#cell-run-2 .cell_input").is_visible() and box(page).get_by_role("textbox").count() == 2
    answer(page, "15, 15", "[5,4]")
    verdicts = box(page).locator(".ask-verdict")
    marks = "node => getComputedStyle(node, '::before').content.replaceAll('\"', '') + node.textContent"
    assert [verdict.evaluate(marks) for verdict in verdicts.all()] == [right, wrong]
    assert verdicts.first.get_attribute("role") == "status"
    assert output.is_visible()
    page.evaluate("new Promise(requestIdleCallback)")
    assert not violations(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_was_answered_is_there_again_and_in_the_other_edition(visit, html):
    page = visit("en/04_data_parallel.html")
    answer(page, "15, 15", "6, 4")
    before = said(page)
    page.reload()
    assert said(page) == before and box(page).locator(".cell_output").first.is_visible()
    page.goto(f"{html.as_uri()}/zh/04_data_parallel.html")
    assert box(page).locator("input").last.input_value() == "6, 4" and said(page)[0] == "答对了。"


NO_LIST = "This is no list of numbers. Write them with commas between them, such as 7, 5, 3."


def test_what_cannot_be_read_shows_nothing(visit):
    page = visit("en/04_data_parallel.html")
    for text in ("half", "1e999", "<b>15</b>"):
        answer(page, text, "5, 5")
        assert said(page) == [NO_LIST, ""], "nothing is told while something cannot be read"
        assert box(page).get_by_text("Mend that, and press again.").is_visible()
        assert not box(page).locator(".cell_output").first.is_visible()
        assert box(page).locator("input").first.get_attribute("aria-invalid") == "true"


def test_odd_input(visit):
    page = visit("en/04_data_parallel.html")
    for text, words in [
        ("[15, 15]", "Right."),
        ("１５、１５", "Right."),
        ("15, 15 rows", "Right."),
        ("15、15 行", "Right."),
        ("15 rows, 15 rows", "Right."),
        ("15 rows and 15", "Right."),
        ("none", "It is: 15, 15. You wrote: none."),
        ("Five and four", "It is: 15, 15. You wrote: Five and four."),
        ("3, 4", "It is: 15, 15. You wrote: 3, 4."),
        ("15", "It is: 15, 15. You wrote: 15."),
        ("7 x 2, 1", "It is: 15, 15. You wrote: 7 x 2, 1."),
    ]:
        answer(page, text, "5, 5")
        assert said(page) == [words, "Right."], text
        assert not box(page).get_by_text("Mend that, and press again.").is_visible()
        assert box(page).locator(".cell_output").first.is_visible()
        assert box(page).locator("input").first.get_attribute("aria-invalid") is None


def test_who_leaves_a_field_empty_is_told(visit):
    page = visit("en/04_data_parallel.html")
    answer(page, "", "5, 5")
    assert said(page) == ["No answer; it is: 15, 15.", "Right."]
    assert box(page).locator(".cell_output").first.is_visible()
    assert not box(page).get_by_text("Mend that, and press again.").is_visible()
    assert box(page).locator("input").first.get_attribute("aria-invalid") is None


def test_enter_goes_on_to_the_next_empty_field(visit):
    """It gave away the answer of the second question before anybody could make a prediction."""
    page = visit("en/04_data_parallel.html")
    first, second = box(page).locator("input").all()
    first.fill("15, 15")
    first.press("Enter")
    assert second.evaluate("field => field === document.activeElement") and said(page) == ["", ""]
    second.press("Enter")  # one who says nothing wants to see it
    assert said(page) == ["Right.", "No answer; it is: 5, 5."]


def test_a_whole_number_is_shown_whole(visit):
    """163,840 was said to be 163800."""
    page, name = visit("en/13_memory.html"), "13_memory/activations"
    answer(page, "164000", "327,680 bytes", name=name)
    assert said(page, name) == ["It is 163840: 160 less than you said.", "Right."]


@pytest.mark.parametrize(
    "lesson, cell, text, words",
    [
        ("16_splitting_layers", "one-piece", "25%", "Right."),
        ("16_splitting_layers", "one-piece", "1 / 4", "Right."),
        ("09_cost", "exercise-1", "720 MB", "Right."),
        ("09_cost", "exercise-1", "0.72 GB", "Write a number such as 17 or 2.5, in the unit that is asked for."),
        ("13_memory", "exercise-2", "4k", "Write a number such as 17 or 2.5, in the unit that is asked for."),
    ],
)
def test_units(visit, lesson, cell, text, words):
    """4k was read as 4, and 25% as 25."""
    page, name = visit(f"en/{lesson}.html"), f"{lesson}/{cell}"
    answer(page, text, name=name)
    assert said(page, name) == [words]


def test_what_stands_after_a_calculator_is_kept_back_with_the_answer(visit):
    """Lesson 17 said which tool holds 7 billion parameters under the box that asked for it."""
    page, name = visit("en/17_choose.html"), "17_choose/table"
    words = page.get_by_text("so the answer is FSDP2")
    assert words.count() == 1 and not words.is_visible()
    box(page, name).locator(".ask-button").click()
    assert words.is_visible() and page.locator("#calculator-table").is_visible()


def test_what_is_nearly_right_is_told_exactly(visit):
    page, name = visit("en/06_gradients.html"), "06_gradients/means-by-hand"
    answer(page, "2", "2.7", name=name)
    assert said(page, name) == ["Right.", "Right: it is 2.667."]


@pytest.mark.parametrize(
    "edition, given, right",
    [
        ("en", [("6, 7", "none"), ("six, 7", "Zero")], "Right."),
        ("zh", [("【６，七】", "0。"), ("第六行、第七行。", "零行"), ("⑥⑦", "没有")], "答对了。"),
    ],
)
def test_numbers_in_words_and_as_a_chinese_keyboard_writes_them(visit, edition, given, right):
    page, name = visit(f"{edition}/14_sharding.html"), "14_sharding/rows"
    for texts in given:
        answer(page, *texts, name=name)
        assert said(page, name) == [right, right], texts


@pytest.mark.parametrize(
    "lesson, cell, given",
    [
        ("06_gradients", "means-by-hand", [("2", each) for each in ("2,667", "2。667", "8÷3", " about 2,667 ")]),
        ("02_random_dataset", "loader-run", [("30 × 3, 10",), ("30*3, 10",)]),
        ("05_four_steps", "noting-network", [("scatter, replicate, parallel apply, gather", "scatter")]),
    ],
)
def test_other_ways_to_write_what_is_right(visit, lesson, cell, given):
    page, name = visit(f"en/{lesson}.html"), f"{lesson}/{cell}"
    for texts in given:
        answer(page, *texts, name=name)
        box(page, name).locator(".ask-button").click()
        assert said(page, name)[: len(texts)] == ["Right."] * len(texts), texts


def test_what_only_has_a_numeral_in_it_is_no_number(visit):
    page, name = visit("zh/04_data_parallel.html"), "04_data_parallel/exercise-2"
    for text in ("一半", "三成", "十几", "三百", "负三"):
        answer(page, text, name=name)
        assert said(page, name) == ["这里要写一个数，例如 17 或 2.5，单位与题目相同。"], text


def test_what_another_tab_has_written_is_not_judged_by_an_earlier_answer(visit):
    page = visit("en/04_data_parallel.html")
    answer(page, "15, 15", "5, 5")
    other = page.context.new_page()
    other.goto(page.url)
    box(other).locator("input").first.fill("1, 1")
    page.wait_for_function("input => input.value === '1, 1'", arg=box(page).locator("input").first.element_handle())
    assert said(page) == ["", ""]


def test_an_answer_from_before_a_question_was_added_still_counts(visit):
    page = visit("en/04_data_parallel.html")
    page.evaluate("name => localStorage.setItem(`answer:${name}`, JSON.stringify({given: ['15, 15']}))", FIRST)
    page.reload()
    assert said(page) == ["Right.", "No answer; it is: 5, 5."]
    assert box(page, "04_data_parallel/run-3").locator(".ask-button").inner_text() == "Show the answer"


def test_what_was_said_of_an_answer_is_not_said_of_another(visit):
    """A wrong choice stood beside "Right." until the button was pressed."""
    page = visit("en/04_data_parallel.html")
    answer(page, "15, 15", "5, 5")
    first = box(page).locator("input").first
    first.fill("15, 14")
    assert said(page) == ["", "Right."]
    page.reload()
    assert first.input_value() == "15, 14" and said(page) == ["", ""], "what is not checked yet is kept, too"
    first.press("Enter")
    assert said(page) == ["It is 15, 15; you have 1 of 2 in place.", "Right."]


def test_enter_goes_on_to_a_choice(visit):
    page, name = visit("en/08_inputs_outputs.html"), "08_inputs_outputs/show-kinds"
    answer(page, "2, 3", name=name)
    assert {*said(page, name)} == {""}
    assert page.evaluate("document.activeElement.type") == "radio"


def test_what_was_solved_once_stays_solved(visit, html):
    name = "04_data_parallel/exercise-2"
    page = visit("en/04_data_parallel.html")
    answer(page, "14", name=name)
    box(page, name).locator("input").fill("13")
    page.keyboard.press("Enter")
    assert said(page, name) == ["Not yet: too small."]
    assert box(page, name).get_by_text("You have solved this before").is_visible()
    page.goto(f"{html.as_uri()}/en/index.html")
    assert page.get_by_text("1 of 3 exercises on the page solved").is_visible()


@pytest.mark.parametrize(
    "name, edition, texts",
    [
        ("06_gradients/equal-chunks", "en", ("3, 2", "8 and 2")),
        ("06_gradients/equal-chunks", "zh", ("3、2", "8和2")),
        ("10_distributed/exercise-1", "zh", ("0、2、6",)),
        ("17_choose/run-both", "en", ("8, 3, 2",)),
        ("06_gradients/counted-rows", "en", ("D and B",)),
        ("06_gradients/counted-rows", "zh", ("bd",)),
    ],
)
def test_where_order_means_nothing_any_order_is_right(visit, name, edition, texts):
    page = visit(f"{edition}/{name.split('/')[0]}.html")
    answer(page, *texts, name=name)
    assert {*said(page, name)} == {{"en": "Right.", "zh": "答对了。"}[edition]}


def test_an_exercise_tells_right_from_wrong_without_giving_the_answer_away(visit):
    page, name = visit("en/04_data_parallel.html"), "04_data_parallel/exercise-2"
    hint = box(page, name).get_by_text("How large is a chunk")
    for text, words in [
        ("14", "Right."),
        ("14 rows", "Right."),
        ("14行", "Right."),
        ("about 14", "Right."),
        ("第14个", "Right."),
        ("14 of 64", "Write a number such as 17 or 2.5, in the unit that is asked for."),
        ("", "Nothing is answered yet."),
        ("0", "Not yet: too small."),
        ("50", "Not yet: too large."),
    ]:
        answer(page, text, name=name)
        assert said(page, name) == [words], text
        assert hint.is_visible() == words.startswith("Not yet"), text


def test_a_hint_leaves_the_words_of_the_lesson_as_they_are(visit):
    """`shuffle` became `Shuffle`, and rank 0 Rank 0."""
    hints = visit("zh/10_distributed.html").locator(".ask-hint").all()
    assert hints
    for hint in hints:
        assert hint.evaluate("hint => getComputedStyle(hint, '::first-letter').textTransform") == "none"
        assert hint.text_content().startswith("提示：")


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_exercise_in_a_page_has_a_hint(html, lesson):
    """Two said nothing but "Not yet"."""
    forms = soup(html / f"{lesson}.html").select("ask-box[data-exercise]")
    assert not [form["data-name"] for form in forms if not form.select_one(".ask-hint")]


def test_the_letters_of_an_order_however_they_stand(visit):
    page, name = visit("en/05_four_steps.html"), "05_four_steps/exercise-1"
    for text in ("DBAC", "dbac", "D B A C", "D, B, A, C", "D→B→A→C", "d-b-a-c"):
        answer(page, text, name=name)
        assert said(page, name) == ["Right."], text


def test_a_list_that_is_too_short_says_so(visit):
    name = "14_sharding/exercise-1"
    page = visit("en/14_sharding.html")
    answer(page, "3 3 3 3 3 3 2", name=name)
    assert said(page, name) == ["Not yet: the list has 8 entries, yours has 7."]


def test_a_wrong_list_of_the_right_length_is_not_called_too_short(visit):
    name = "14_sharding/exercise-3"
    page = visit("en/14_sharding.html")
    answer(page, "4, 2", name=name)
    assert said(page, name) == ["Not yet: 0 of 2 are in place."]


def test_what_is_filled_in_is_checked_and_each_field_has_its_own_hint(visit):
    name = "14_sharding/exercise-2"
    page = visit("en/14_sharding.html")
    answer(page, "96", "", name=name)
    assert said(page, name) == ["Right.", "Nothing is answered yet."]
    box(page, name).locator("input").last.fill("48")
    box(page, name).get_by_role("button").click()
    hints = box(page, name).locator(".ask-hint").all()
    assert [hint.is_visible() for hint in hints] == [False, True]


def test_what_all_lessons_show_is_not_offered(visit):
    page = visit("en/04_data_parallel.html")
    page.get_by_role("button", name="Show all answers at once").click()
    assert box(page).get_by_role("button").all_inner_texts() == ["Check"]
    page.get_by_role("button", name="Keep them back again").click()
    assert box(page).get_by_role("button").all_inner_texts() == ["Show the answer"]


def test_what_has_been_shown_is_not_offered_again(visit):
    page = visit("en/04_data_parallel.html")
    answer(page, "15, 15", "5, 5")
    assert box(page).get_by_role("button").all_inner_texts() == ["Check again"]
    box(page).locator("input").first.fill("3, 4")
    box(page).get_by_role("button").press("Enter")
    assert said(page)[0] == "It is: 15, 15. You wrote: 3, 4."


@pytest.mark.parametrize(
    "edition, words", [("en", "This exercise is done in the notebook"), ("zh", "这道练习要在 notebook 里做")]
)
def test_an_exercise_without_a_box_says_where_it_is_done(visit, edition, words):
    page = visit(f"{edition}/06_gradients.html")
    assert page.get_by_text(words).count() == 1
    assert page.locator("#cell-exercise-2").is_visible() and not page.locator("#cell-exercise-2-check").is_visible()
    page = visit(f"{edition}/04_data_parallel.html")
    assert page.get_by_text(words).count() == 0 and page.locator("#cell-split-law-check").is_visible()


def test_one_of_several_right_answers(visit):
    name = "04_data_parallel/exercise-3"
    page = visit("en/04_data_parallel.html")
    for text, words in (("40", "Not yet."), ("60", "Right.")):
        box(page, name).locator("input").fill("")
        answer(page, text, name=name)
        assert said(page, name) == [words]


def test_a_choice_by_keyboard(visit):
    page = visit("en/01_device.html")
    name = "01_device/move-tensor-run"
    group = box(page, name).get_by_role("group").first
    assert group.get_by_role("radio").count() == 2
    group.get_by_role("radio").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert said(page, name)[0] == "It is: still on the CPU."


def test_the_switch_shows_everything_everywhere(visit, html):
    page = visit("en/04_data_parallel.html")
    hidden = page.locator("answer-part[hidden]")
    assert hidden.count() > 3
    page.get_by_role("button", name="Show all answers at once, in all lessons").click()
    assert hidden.count() == 0
    page.goto(f"{html.as_uri()}/en/05_four_steps.html")
    assert hidden.count() == 0
    page.get_by_role("button", name="All answers are shown. Keep them back again, in all lessons").click()
    assert hidden.count() > 3


@pytest.mark.parametrize("how", ["without scripts", "without ask.js", "without shared.js", "on paper"])
def test_nothing_is_kept_back(visit, browser, html, how):
    context = browser.new_context(java_script_enabled=how != "without scripts")
    page = context.new_page()
    if how.endswith(".js"):
        page.route(f"**/{how.split()[1]}*", lambda route: route.abort())
    page.goto(f"{html.as_uri()}/en/04_data_parallel.html")
    if how == "on paper":
        page.emulate_media(media="print")
    for output in page.locator("ask-box .cell_output").all():  # of tabs, one is open
        assert output.is_visible() or output.evaluate("node => node.closest('.run[hidden]') !== null")
    assert all(tabs.locator(".run:visible").count() for tabs in page.locator("ask-box .runs").all())
    assert not any(form.is_visible() for form in page.locator("form.ask, show-all").all())
    context.close()


@pytest.mark.parametrize("broken", ["localStorage", "setItem"])
def test_where_nothing_can_be_kept(browser, html, broken):
    """Storage that is forbidden, or full."""
    throws = "() => { throw new DOMException('no') }"
    script = {
        "localStorage": f"Object.defineProperty(window, 'localStorage', {{ get: {throws} }})",
        "setItem": f"Storage.prototype.setItem = {throws}",
    }[broken]
    context = browser.new_context()
    context.add_init_script(script)
    page = context.new_page()
    page.goto(f"{html.as_uri()}/en/04_data_parallel.html")
    answer(page, "15, 15", "5, 5")
    assert said(page) == ["Right.", "Right."] and box(page).locator(".cell_output").first.is_visible()
    assert box(page).get_by_text("This browser does not let the page keep your answer.").is_visible()
    context.close()


def test_two_tabs_lose_nothing_of_each_other(visit, html):
    page = visit("en/04_data_parallel.html")
    other = page.context.new_page()
    other.goto(f"{html.as_uri()}/en/04_data_parallel.html")
    answer(page, "15, 15", "5, 5")
    other.wait_for_function("document.querySelectorAll('.ask-right').length === 2")
    answer(other, "4, 4, 2", name="04_data_parallel/run-3")
    page.wait_for_function("document.querySelectorAll('.ask-right').length === 3")


def test_what_is_not_ours_in_the_storage_does_no_harm(visit):
    page = visit("en/04_data_parallel.html")
    page.evaluate(f"localStorage.setItem('answer:{FIRST}', 'no JSON')")
    page.evaluate("localStorage.setItem('answer:04_data_parallel/run-3', '{\"given\": 3}')")
    page.reload()
    answer(page, "15, 15", "5, 5")
    assert said(page) == ["Right.", "Right."]


@pytest.mark.parametrize(
    "edition, solved", [("en", "2 of 3 exercises on the page solved"), ("zh", "网页上的练习做对 2/3")]
)
def test_what_is_solved_is_counted_exported_and_erased(visit, html, edition, solved):
    page = visit(f"{edition}/04_data_parallel.html")
    answer(page, "3, 3, 3, 1", name="04_data_parallel/exercise-1")
    answer(page, "14", name="04_data_parallel/exercise-2")
    answer(page, "40", name="04_data_parallel/exercise-3")
    page.goto(f"{html.as_uri()}/{edition}/index.html")
    count = page.locator('solved-count[data-lesson="04_data_parallel"]')
    assert count.inner_text() == solved
    with page.expect_download() as download:
        page.locator('kept-answers button[value="take"]').click()
    kept = json.loads(download.value.path().read_text("utf-8"))
    assert kept["04_data_parallel/exercise-2"] == {"given": ["14"], "right": True} and len(kept) == 3
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator('kept-answers button[value="erase"]').click()
    assert count.inner_text() == "" and page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize("edition, words", [("en", "Answers loaded: 2."), ("zh", "已读入 2 个答案。")])
def test_what_was_saved_can_be_loaded_again(visit, html, tmp_path, edition, words):
    file, name = tmp_path / "answers.json", "04_data_parallel/exercise-2"
    saved = {name: {"given": ["13"], "right": False}, FIRST: {"given": ["15, 15", "5, 5"], "right": True}}
    file.write_text(json.dumps(saved), "utf-8")
    page = visit(f"{edition}/04_data_parallel.html")
    answer(page, "14", name=name)
    page.goto(f"{html.as_uri()}/{edition}/index.html")
    bring(page, file)
    assert page.locator("kept-answers [role=status]").inner_text() == words
    count = page.locator('solved-count[data-lesson="04_data_parallel"]').inner_text()
    assert count == {"en": "1 of 3 exercises on the page solved", "zh": "网页上的练习做对 1/3"}[edition], (
        "what was solved here stays so"
    )
    page.goto(f"{html.as_uri()}/{edition}/04_data_parallel.html")
    assert page.locator(".ask-right").count() == 2 and box(page).locator(".cell_output").first.is_visible()


@pytest.mark.parametrize("text", ["no JSON", "3", "null", "[]", '{"a/b": 3, "c/d": null, "e": {"given": []}}'])
def test_another_file_brings_nothing_and_says_so(visit, tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text, "utf-8")
    page = visit("en/index.html")
    bring(page, file)
    assert page.locator("kept-answers [role=status]").inner_text() == "This file holds no answers from this book."
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('answer'))") == []


def bring(page, file):
    with page.expect_file_chooser() as chooser:
        page.locator('kept-answers button[value="bring"]').click()
    chooser.value.set_files(file)
    page.wait_for_function("document.querySelector('kept-answers [role=status]').textContent")


def test_a_link_to_what_is_kept_back_shows_it(visit):
    page = visit("en/10_distributed.html")
    place = page.locator("answer-part [id]").first
    id = place.get_attribute("id")
    assert not place.is_visible()
    page.evaluate(f"location.hash = '{id}'")
    page.wait_for_function(f"Math.abs(document.getElementById('{id}').getBoundingClientRect().top) < innerHeight")
    assert place.is_visible()


def test_a_link_to_a_cell_shows_what_it_puts_out(visit, html):
    page = visit("en/search.html")
    page.goto(f"{html.as_uri()}/en/14_sharding.html#cell-fits")
    assert page.locator("#cell-fits + ask-box .cell_output").first.is_visible()


def test_a_section_that_is_sought_from_elsewhere_keeps_nothing_back(visit, html):
    page = visit("en/search.html")
    page.goto(f"{html.as_uri()}/en/01_device.html#move-model")
    shown = page.locator("section:has(> #move-model) answer-part")
    assert shown.count() == 1 and shown.get_attribute("hidden") is None
    assert page.locator("section:has(> #move-tensor) answer-part").first.get_attribute("hidden") is not None


def test_searching_in_the_page_finds_what_is_kept_back(visit):
    page = visit("en/04_data_parallel.html")
    assert page.locator("answer-part").first.get_attribute("hidden") == "until-found"


def test_truths_are_found_beside_the_lesson_and_change_nothing(run, shipped):
    """No page and no reader's notebook has them; the kernel's random numbers are those without questions."""
    book = load(shipped)
    for lesson in book.lessons:
        text = (shipped / lesson.path).read_text("utf-8")
        assert asking.TRUTHS not in text
    assert not re.search(
        r"truths\+json", "".join(path.read_text("utf-8") for path in shipped.glob("_build/html/*/*.ipynb"))
    )
