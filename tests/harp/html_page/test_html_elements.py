"""Elements of pages: whatever the words are, they are text, and JSON reads back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.html_page.html_elements import json_text, licences, sentences, table, text
from tests.support.html_pages import Page

WORDS = st.text("<>&\"'/-;ab \u00e9\u2028\u2029", max_size=9) \
    | st.sampled_from(["</script>", "&amp;"])


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=2, max_size=2),
       st.lists(st.lists(WORDS, min_size=2, max_size=2), max_size=4))
def test_a_table_shows_its_words_as_they_are(head: list[str], body: list[list[str]]) -> None:
    page = Page(table(head, body, caption="<b>", left=[True, False]))
    assert page.cells == [head, *body]
    assert set(page.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_marked_rows_and_texts_are_of_their_classes() -> None:
    page = Page(table(["a", "b"], [["1", "2"], ["3", "4"]], caption="c", left=[True, False],
                      marked=[False, True]))
    assert [value for tag, name, value in page.attributes if (tag, name) == ("tr", "class")] == [
        "missed"]
    assert ("th", "scope", "row") in page.attributes


@settings(max_examples=40)
@given(st.dictionaries(WORDS, WORDS | st.integers() | st.none() | st.lists(WORDS)))
def test_json_reads_back_and_ends_no_element(data: dict[str, object]) -> None:
    made = json_text(data)
    assert json.loads(made) == data
    assert not set("<\u2028\u2029") & set(made)


def test_numbers_that_are_none_are_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"x": float("nan")})


def test_a_list_of_no_sentences_is_no_element() -> None:
    assert sentences("Notes", []) == ""
    assert "<li>a &lt; b</li>" in sentences("Notes", ["a < b"])
    assert text("'\"") == "&#x27;&quot;"


def test_licences_end_no_comment() -> None:
    assert "Apache" in licences()
    assert "--" not in licences()
