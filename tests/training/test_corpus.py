"""The corpus: what goes in, what stays out, and that held-out text was never trained on."""

import json

import pytest

from training.corpus import Document, collect, manifest, split_of, topics


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {document.source: document for document in collect(folder)}


PLAIN = "value = name\n"
LONG = '"""' + "A function that does something which takes two lines\nto say, and so is prose.\n" * 2 + '"""'


def test_modules_tests_and_docstrings_become_documents_of_their_kind(tmp_path):
    seen = write(tmp_path, {"a.py": f"def f():\n    {LONG}\n", "test/b.py": PLAIN})
    assert {source: d.kind for source, d in seen.items()} == {
        "a.py": "library",
        "a.py:docstrings": "prose",
        "test/b.py": "tests",
    }
    assert seen["a.py"].text.startswith("def f")
    assert seen["a.py:docstrings"].text.startswith("A function that")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site-packages/a.py", PLAIN),
        ("test/__pycache__/a.py", PLAIN),
        ("_sysconfigdata__linux.py", PLAIN),
        ("note.txt", PLAIN),
        ("broken.py", "def function(:\n"),
        ("latin.py", b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n"),
        ("empty.py", "\n"),
        ("numbers.py", "1, 2, 3, 4, 5, 6, 7, 8, 9\n"),
        ("encodings/koi8.py", "import codecs\ndecoding_table = (\n'letters and letters'\n)\n"),
    ],
)
def test_what_is_no_text_of_the_library_stays_out(tmp_path, name, text):
    assert write(tmp_path, {name: text}) == {}


def test_docstrings_are_held_out_with_their_module(tmp_path):
    seen = write(tmp_path, {f"m{i}.py": f"{LONG}\n" for i in range(60)})
    held_out = {source for source, d in seen.items() if d.split == "heldout"}
    modules = {source for source in held_out if source.endswith(".py")}
    assert modules
    assert held_out == modules | {f"{source}:docstrings" for source in modules}


def test_about_a_twentieth_is_held_out_and_always_the_same():
    names = [f"folder/file{i}.py" for i in range(4000)]
    assert 140 < sum(split_of(name) == "heldout" for name in names) < 260
    assert split_of("enum.py") == "heldout"


def test_topics_share_no_paragraph():
    seen = list(topics({"b": "One.\n\nTwo.\n", "a": "One.\n\nThree.\n", "c": "Two.\n"}))
    assert [(d.source, d.text) for d in seen] == [
        ("pydoc_data/topics.py:a", "One.\n\nThree.\n"),
        ("pydoc_data/topics.py:b", "Two.\n"),
    ]


def test_the_manifest_counts_and_its_hash_follows_the_text(corpus):
    facts = manifest(corpus)
    assert facts["sizes"]["library"]["train"]["documents"] == 2
    assert facts["sizes"]["prose"]["heldout"]["bytes"] == len(corpus[-1].text.encode())
    assert manifest(corpus[:-1])["sha256"] != facts["sha256"] == manifest(list(corpus))["sha256"]
    json.dumps(facts, allow_nan=False)


def test_the_manifest_tells_how_much_of_the_held_out_text_is_copied():
    long, longer, short = "a" * 40, "b" * 50, "c" * 39
    train = Document("a.py", "library", "train", f"    {long}\n{short}\n")
    held_out = Document("b.py", "library", "heldout", f"{long}\n{longer}\n{short}\n")
    assert manifest([train, held_out])["heldout_lines_also_in_train"] == 0.5
