"""Writes the corpus: the Python standard library's source and the texts that stand in it.

`corpus.jsonl` holds a document a line: {"source", "kind", "split", "text"}. `kind` is "library" (a module),
"tests" (a module of Lib/test) or "prose" (a module's docstrings, or a topic of the language reference that
`help()` shows). `corpus.json` says what went in. Licence of all of it: PSF-2.0.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import platform
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from training.options import parser

CORPUS_FILE = "corpus.jsonl"
MANIFEST_FILE = "corpus.json"
KINDS = ("library", "tests", "prose")
SPLITS = ("train", "heldout")

_TOPICS = "pydoc_data/topics.py"
_OUTSIDE = ("site-packages", "lib-dynload", "__pycache__", "config-", "_sysconfigdata")
"""Not of the standard library, or written when an interpreter is built."""
_HELD_OUT_OF = 20
_MIN_DOCSTRING = 80
_MIN_LETTERS = 0.5
_CODEC_TABLES = ("decoding_table =", "decoding_map =")


@dataclass(frozen=True, slots=True)
class Document:
    """One text; `source` is a path inside the standard library, with `:topic` or `:docstrings` for prose."""

    source: str
    kind: str
    split: str
    text: str


def split_of(source: str) -> str:
    """Every twentieth file or topic by the hash of its name is held out, with all that comes from it."""
    digest = hashlib.sha256(source.encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") % _HELD_OUT_OF == 0 else "train"


def collect(stdlib: Path) -> Iterator[Document]:
    """All documents of a standard library folder, in order of path."""
    for path in sorted(stdlib.rglob("*.py"), key=lambda p: p.relative_to(stdlib).as_posix()):
        source = path.relative_to(stdlib).as_posix()
        if not _is_outside(source) and source != _TOPICS:
            yield from _documents(source, path)


def topics(texts: dict[str, str]) -> Iterator[Document]:
    """A document a topic; a paragraph that an earlier topic holds is left out, so that splits share none."""
    seen: set[str] = set()
    for name in sorted(texts):
        paragraphs = [p for p in texts[name].strip().split("\n\n") if p.strip()]
        kept = [p for p in paragraphs if p.strip() not in seen]
        seen.update(p.strip() for p in kept)
        if kept:
            source = f"{_TOPICS}:{name}"
            yield Document(source, "prose", split_of(source), "\n\n".join(kept) + "\n")


def _is_outside(source: str) -> bool:
    return any(part.startswith(_OUTSIDE) for part in PurePosixPath(source).parts)


def _documents(source: str, path: Path) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # data of tests: broken on purpose, or of another encoding
        return
    if not text.strip() or _is_table(source, text):
        return
    is_test = any(part in ("test", "tests", "idle_test") for part in PurePosixPath(source).parts)
    yield Document(source, "tests" if is_test else "library", split_of(source), text)
    prose = "\n\n".join(_docstrings(tree))
    if prose:
        yield Document(f"{source}:docstrings", "prose", split_of(source), prose + "\n")


def _is_table(source: str, text: str) -> bool:
    """Character tables and other files that are more numbers than words."""
    if source.startswith("encodings/") and any(mark in text for mark in _CODEC_TABLES):
        return True
    return sum(c.isalpha() for c in text) < _MIN_LETTERS * sum(not c.isspace() for c in text)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) >= _MIN_DOCSTRING and "\n" in text.strip():
                yield inspect.cleandoc(text)


def manifest(documents: Sequence[Document]) -> dict[str, Any]:
    """What went in: counts, bytes, a hash over all documents, and how much of the held-out text is copied."""
    digest = hashlib.sha256()
    sizes = {kind: {split: {"documents": 0, "bytes": 0} for split in SPLITS} for kind in KINDS}
    for document in documents:
        digest.update(json.dumps(asdict(document), sort_keys=True).encode())
        entry = sizes[document.kind][document.split]
        entry["documents"] += 1
        entry["bytes"] += len(document.text.encode())
    return {
        "source": f"Python {platform.python_version()} standard library (Lib)",
        "licence": "PSF-2.0",
        "sha256": digest.hexdigest(),
        "sizes": sizes,
        "heldout_lines_also_in_train": _copied_share(documents),
        "heldout_sources": sorted(d.source for d in documents if d.split == "heldout"),
    }


def _copied_share(documents: Sequence[Document]) -> float:
    """Share of held-out lines of 40 or more characters that some train document holds too."""
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for document in documents:
        long = (line.strip() for line in document.text.splitlines())
        lines[document.split] += [line for line in long if len(line) >= 40]
    train = set(lines["train"])
    return sum(line in train for line in lines["heldout"]) / max(1, len(lines["heldout"]))


def read_documents(folder: Path) -> list[Document]:
    """The documents that `corpus.jsonl` of a data folder holds."""
    with (folder / CORPUS_FILE).open(encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]


def main(arguments: Sequence[str] | None = None) -> None:
    """Collects, writes, and prints the manifest without the list of files."""
    options = parser(__doc__).parse_args(arguments)
    topic_texts = importlib.import_module("pydoc_data.topics").topics
    documents = [*collect(Path(sysconfig.get_path("stdlib"))), *topics(topic_texts)]
    options.data.mkdir(parents=True, exist_ok=True)
    with (options.data / CORPUS_FILE).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(document)) + "\n" for document in documents)
    facts = manifest(documents)
    (options.data / MANIFEST_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shown = {key: value for key, value in facts.items() if key != "heldout_sources"}
    sys.stdout.write(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
