"""Upstream reports are found in pages, and a question that is one is known as such."""

import pytest

from moeinspect.guide.references import Reference, reference_meant, references_in


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Seen in SGLang PR 23885. It came with PR 22911.", {("sglang", 23885), ("sglang", 22911)}),
        ("vllm-ascend 10717 and 10727", {("vllm-ascend", 10717), ("vllm-ascend", 10727)}),
        ("vllm-project/router#184; sglang#22916", {("router", 184), ("sglang", 22916)}),
        ("SGLang: issue 26975 and the first repairs, PR 39027", {("sglang", 26975), ("sglang", 39027)}),
        ("SGLang 0.5.23, merged 2026-04-27, none of 348,672 ids, 512 rows, vLLM 0.32", set()),
        ("SGLang:\n```console\nclean: 891 rows, 4455 cells, PR 12345\n```\n", set()),
    ],
)
def test_reports_in_a_text(text, found):
    assert references_in(text) == {Reference(*one) for one in found}


@pytest.mark.parametrize(
    ("question", "project", "number"),
    [
        ("sglang#23885", "sglang", 23885),
        ("sgl-project/sglang#23885", "sglang", 23885),
        ("https://github.com/vllm-project/vllm/issues/48622/", "vllm", 48622),
        ("SGLang PR 23885", "sglang", 23885),
        ("#23885", "", 23885),
        (" 184 ", "", 184),
    ],
)
def test_a_question_that_is_a_report(question, project, number):
    assert reference_meant(question) == Reference(project, number)


@pytest.mark.parametrize(
    "question",
    [
        "expanded size must match 8192",
        "SGLang 0.5.123",
        "2026-04-271",
        "12",
        "zero rows",
        "",
        "id 255 and above",
    ],
)
def test_a_question_that_is_none(question):
    assert reference_meant(question) is None


def test_a_project_counts_only_where_both_name_one():
    assert Reference("", 5).fits(Reference("a", 5)) and Reference("a", 5).fits(Reference("", 5))
    assert not Reference("a", 5).fits(Reference("b", 5)) and not Reference("a", 5).fits(Reference("a", 6))
