"""The guide has a page for whatever a report can name, and each page says what it has to."""

import ast
import re
from pathlib import Path

import pytest

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.guide import GROUPS, TOPICS, all_pages
from moeinspect.runtime.faults import FAULTS

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "moeinspect" / "guide"
INDEX = (GUIDE / "README.md").read_text(encoding="utf-8")
DIAGNOSE = ROOT / "moeinspect" / "analysis" / "diagnose"
MOST_NAMES = 4
PAGES = {(page.kind, page.name): page for page in all_pages()}


def names(*kinds):
    return {name for kind, name in PAGES if kind in kinds}


def test_every_cause_that_a_diagnosis_names_has_a_page():
    assert names("fault", "transport", "verdict") >= set(CAUSES)
    assert names("fault") == set(FAULTS)


@pytest.mark.parametrize(
    ("kind", "docs"), [("rule", "rules.md"), ("comparison", "reading-a-report.md")], ids=str
)
def test_every_rule_of_the_docs_has_a_page(kind, docs):
    text = (ROOT / "docs" / docs).read_text(encoding="utf-8")
    table = re.search(r"^\| rule \|.*?(?=^$)", text, re.MULTILINE | re.DOTALL)[0]
    firsts = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = {name for cell in firsts for name in re.findall(r"[`\[]([a-z][a-z-]+)[`\]]", cell)}
    assert listed and listed <= names(kind, "rule")


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: f"{page.kind} {page.name}")
def test_a_page_begins_with_its_name_and_a_title_that_fits_a_line_of_80(page):
    assert page.text.startswith(f"# {page.name}: {page.title}\n\n")
    assert 0 < len(page.title) <= 50 and len(page.name) <= 24
    assert "](" not in page.text


@pytest.mark.parametrize("kind", ["fault", "transport"])
def test_every_cause_says_what_happens_what_it_looks_like_and_what_to_do(kind):
    folder = GUIDE / GROUPS[kind][0]
    for name in names(kind):
        text = PAGES[kind, name].text
        assert ("**Fixed in.**" in text) == (kind == "fault")
        for part in ("**Mechanism.**", "**Symptom.**", "**Confirm it.**", "**Mend it.**", "```console"):
            assert part in text, f"{folder / name}.md lacks {part}"
        assert (f"--fault {name}" in text) == (kind == "fault")


@pytest.mark.parametrize("kind", ["rule", "comparison"])
def test_every_rule_says_when_it_fires(kind):
    for name in names(kind):
        assert re.search(r"^\*\*(Fires|Says)\*\* ", PAGES[kind, name].text, re.MULTILINE), name


def test_the_index_links_every_page():
    linked = re.findall(r"\[([a-z0-9-]+)\]\(([a-z]+)/\1\.md\)", INDEX)
    folders = {folder: kind for kind, (folder, _) in GROUPS.items()}
    assert {(folders[folder], name) for name, folder in linked} == set(PAGES)


def test_faults_stand_under_one_topic_each_in_the_order_of_the_index():
    listed = re.findall(r"^\| \[([a-z0-9-]+)\]\(faults/", INDEX, re.MULTILINE)
    by_topic = [name for topic in TOPICS.values() for name in topic]
    assert sorted(by_topic) == sorted(listed) == sorted(names("fault"))
    assert by_topic == listed


def classes_of_the_guide():
    """The classes of the table of inseparable causes, with the cells of their rows."""
    table = INDEX.split("## Causes that data cannot tell apart")[1].split("\n## ")[0]
    rows = [row.strip("|").split(" | ") for row in table.splitlines() if row.startswith("| `")]
    return {frozenset(re.findall(r"`([a-z0-9-]+)`", first)): rest for first, *rest in rows}


def classes_of_the_code():
    """What the code may join: names of one literal, and those that a function gathers before it joins."""
    found = set()
    for path in DIAGNOSE.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {
            frozenset(text.split("|"))
            for text in literals(tree)
            if re.fullmatch(r"[a-z0-9-|]+", text) and "|" in text[1:]
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and "'|'.join" in ast.unparse(function):
                found.add(frozenset(literals(function)) & (set(CAUSES) - {"unknown"}))
    return found


def literals(node):
    return [
        one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def test_the_guide_has_every_class_of_causes_that_the_code_joins_and_no_other():
    code, guide = classes_of_the_code(), classes_of_the_guide()
    assert len(code) > 10
    assert {one for one in code if one not in guide} == set()
    assert {one for one in guide if one not in code} == set()


def test_every_class_says_why_it_is_one_and_what_would_separate_it():
    for names_, (why, separates) in classes_of_the_guide().items():
        assert len(why) > 20 and len(separates) > 20, names_
        assert len(names_) <= MOST_NAMES or "at most four" in separates
