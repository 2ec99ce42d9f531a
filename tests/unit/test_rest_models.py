"""Which voices a listing is asked for, and what a script tells of a language."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.datastructures import QueryParams

from shoal.realtime.answers import Refused
from shoal.realtime.rest.catalogue import Model
from shoal.realtime.rest.languages import script_language
from shoal.realtime.rest.models import AUTHOR_ID, MAX_PAGE_SIZE, Query, entity, parse_query

ANN = Model("1", 3.0, 0.0, 1.5, "Änn of Cleves", "", "private", ("a", "b"), ("ja",), False)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", True),
        ("title=ÄNN", True),
        ("title=bob", False),
        ("tag=a", True),
        ("tag=a&tag=b", True),
        ("tag=a&tag=c", False),
        ("tag=", True),
        ("self=true", True),
        ("self=false", True),
        (f"author_id={AUTHOR_ID}", True),
        ("author_id=me", False),
        ("language=ja", True),
        ("language=en&language=ja", True),
        ("language=en", False),
        ("title_language=ja", True),
    ],
)
def test_filters(query: str, found: bool) -> None:
    assert parse_query(QueryParams(query)).matches(ANN) is found


def test_what_is_not_known_is_not_held_against_a_voice() -> None:
    assert Query(languages=("en",)).matches(replace(ANN, languages=()))
    assert not Query(title_languages=("en",)).matches(replace(ANN, title="アン"))


def test_pages() -> None:
    assert parse_query(QueryParams("")) == Query(page_size=10, page_number=1)
    asked = parse_query(QueryParams("page_size=3&page_number=7"))
    assert (asked.page_size, asked.page_number) == (3, 7)
    assert parse_query(QueryParams("page_size=5000")).page_size == MAX_PAGE_SIZE
    for bad in ("page_size=0", "page_size=-1", "page_number=x", "page_number=²", "sort_by=age"):
        with pytest.raises(Refused) as refused:
            parse_query(QueryParams(bad))
        assert refused.value.refusal.status == 400


def test_times_are_utc() -> None:
    shown = entity(ANN)
    assert shown["created_at"] == "1970-01-01T00:00:00Z"
    assert shown["updated_at"] == "1970-01-01T00:00:01.500000Z"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello", ()),
        ("Привет", ()),
        ("", ()),
        ("漢字", ("zh",)),
        ("漢字かな", ("ja",)),
        ("한국어", ("ko",)),
        ("سلام", ("ar",)),
        ("สวัสดี", ("th",)),
        ("γειά", ("el",)),
        ("שלום", ("he",)),
    ],
)
def test_a_script_tells_the_language_where_it_is_of_one(
    text: str, language: tuple[str, ...]
) -> None:
    assert script_language([text]) == language
    assert script_language(["OK", text]) == language
