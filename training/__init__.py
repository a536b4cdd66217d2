"""The recipe of the embedded pair: corpus, tokenizer, target, distilled draft, export, evaluation.

Each step is one command (`python -m training.corpus`, ...), seeded, and leaves its results in a data folder
(`training-data` unless `--data` names another). See docs/embedded-pair.md.
"""
