"""What is found in texts, and kept."""

from book import texts


def test_what_was_found_in_texts_is_kept_for_the_next_process(tmp_path, monkeypatch):
    calls = []

    @texts.kept
    def length(text):
        calls.append(text)
        return len(text)

    def process(*given, made_by="1"):
        """The texts that were looked at, and not known from the process before."""
        monkeypatch.setattr(texts, "found", {})
        calls.clear()
        with texts.keeping(tmp_path / "found.json", made_by):
            assert [length(text) for text in given] == [len(text) for text in given]
        return list(calls)

    assert process("one", "three", "one") == ["one", "three"]
    assert process("one", "four") == ["four"]
    assert process("one", "four") == []
    assert process("three") == ["three"], "what the last process did not ask for is forgotten"
    assert process("three", made_by="2") == ["three"], "another package may find something else"
    (tmp_path / "found.json").write_text("{")
    assert process("three", made_by="2") == ["three"]
