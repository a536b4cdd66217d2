"""The recipe is no part of the installed package: tests import it from the repository's root."""

import inspect
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

TEXTS = {
    "library": ("heapq", "bisect", "textwrap"),
    "tests": ("calendar", "fnmatch", "shlex"),
    "prose": ("statistics", "fractions", "string"),
}


@pytest.fixture(scope="session")
def corpus():
    """A few modules as documents; the last of each kind is held out."""
    Document = import_module("training.corpus").Document
    return [
        Document(f"{name}.py", kind, "heldout" if name == names[-1] else "train", _text(name))
        for kind, names in TEXTS.items()
        for name in names
    ]


def _text(name):
    return inspect.getsource(import_module(name))[:20000]


@pytest.fixture(scope="session")
def data(corpus, tmp_path_factory):
    """A data folder in which the toy pair was trained, distilled and exported by the commands."""
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps(asdict(document)) + "\n" for document in corpus]
    (folder / "corpus.jsonl").write_text("".join(lines))
    (folder / "corpus.json").write_text(json.dumps(import_module("training.corpus").manifest(corpus)))
    import_module("training.tokenizer").main(["--data", str(folder), "--vocabulary", "320"])
    toy = ["--data", str(folder), "--size", "toy", "--device", "cpu", "--compile", "off"]
    import_module("training.train").main([*toy, "--steps", "60"])
    import_module("training.distill").main([*toy, "--steps", "60"])
    import_module("training.export").main(["--data", str(folder), "--pair", str(folder / "pair")])
    return folder
