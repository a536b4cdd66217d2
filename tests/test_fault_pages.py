from pathlib import Path

import pytest

from moeinspect.runtime.faults import FAULTS

PAGES = Path(__file__).parents[1] / "docs" / "faults"


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_a_page_that_the_index_links(name):
    page = (PAGES / f"{name}.md").read_text()
    for part in ("**Mechanism.**", "**Symptom.**", "**Confirm it.**", "**Mend it.**", f"--fault {name}"):
        assert part in page
    assert f"[{name}]({name}.md)" in (PAGES / "README.md").read_text()
