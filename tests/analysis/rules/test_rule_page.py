"""docs/rules.md against the rules."""

import re
from pathlib import Path

from analysis.rules.test_exact_rules import EXACT

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rules.md"
ORDER = [
    "missing-request",
    "missing-rows",
    "surplus-rows",
    "id-out-of-range",
    "partial-sentinel",
    "zero-layers",
    "zero-rows",
    "duplicate-experts",
    "filler-rows",
    "repeated-rows",
    "stale-rows",
    "constant-column",
    "equal-layers",
    "id-cliff",
]


def test_every_rule_has_its_section_in_the_order_in_which_rules_count_cells():
    sections = re.findall(r"^## (\S+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sections == ORDER
    assert set(ORDER) > EXACT


def test_the_table_links_every_section():
    assert re.findall(r"^\| \[(\S+)\]\(#\1\)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE) == ORDER


def test_no_rule_is_named_in_the_code_and_missing_on_the_page():
    package = Path(__file__).resolve().parents[3] / "moeinspect" / "analysis" / "rules"
    source = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    named = set(
        re.findall(
            r'"((?:missing|surplus|id|partial|zero|duplicate|filler|repeated|stale|constant|equal)-[a-z-]+)"',
            source,
        )
    )
    assert named == set(ORDER)
