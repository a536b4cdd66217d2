"""Questions in words come to the pages that they mean, and to none where nothing fits."""

import pytest

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.errors import UsageError
from moeinspect.guide import all_pages
from moeinspect.guide.lookup import MAX_FITTING, look_up
from moeinspect.guide.references import references_in

REFERENCES = {name: cause.reference for name, cause in CAUSES.items()}


def names(question):
    return [page.name for page in look_up(question, REFERENCES).pages]


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: f"{page.kind} {page.name}")
def test_a_title_finds_its_page(page):
    fitting = look_up(page.title, REFERENCES).pages
    assert page in fitting[:3] and len(fitting) <= MAX_FITTING


@pytest.mark.parametrize("name", sorted(set(REFERENCES) & {page.name for page in all_pages()}))
def test_every_report_that_the_catalogue_names_finds_its_cause(name):
    for one in references_in(REFERENCES[name]):
        assert name in names(f"{one.project}#{one.number}")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("my output rows are all zeros", {"verify-dropped", "skip-finalize-prefill"}),
        ("stale prefix cache", {"stale-slot"}),
        ("ids out of range", {"id-out-of-range", "physical-ids"}),
        ("rows of another request", {"batch-index-swap", "stale-rows"}),
        ("last prompt row is missing", {"prefill-only-short"}),
        ("ValueError: rollout_routed_experts is required in rollout_data, rank 3", {"missing-request"}),
    ],
)
def test_words_find_what_they_describe(words, first):
    assert set(names(words)[: len(first)]) == first


def test_a_message_that_pages_quote_finds_those_alone_whatever_stands_around_it():
    message = "AssertionError: [rank 0] Duplicate experts in routing! unique_counts[:10]=[1, 1], expected=8"
    assert set(names(message)) == {"skip-finalize-prefill", "duplicate-experts", "zero-rows"}


@pytest.mark.parametrize("words", ["", "  ", "!!!", "the", "qqqq wwww", "no-merg", "a|b", "no-merge|"])
def test_what_fits_nothing_is_trouble(words):
    with pytest.raises(UsageError, match="no page named"):
        look_up(words, REFERENCES)
