"""Options of a run: the draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moeinspect.commands._declare import DRAFT, MAX_COUNT, option, within


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The draft model."""

    draft: Annotated[
        str,
        option(
            "--draft",
            panel=DRAFT,
            metavar="MODEL",
            help="Draft model: a checkpoint folder, builtin:tiny-draft, builtin:random-draft, "
            "builtin:random-nextn, builtin:random-eagle3, ngram (what came after the same tokens), none.",
        ),
    ] = "none"
    num_draft_tokens: Annotated[
        int,
        option(
            "--num-draft-tokens",
            panel=DRAFT,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Tokens proposed per step.",
        ),
    ] = 4
    draft_topk: Annotated[
        int,
        option(
            "--draft-topk",
            panel=DRAFT,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Branches of the draft's tree; 1 is a chain.",
        ),
    ] = 1
    adaptive_draft: Annotated[
        bool,
        option(
            "--adaptive-draft",
            panel=DRAFT,
            help="Propose more or fewer tokens as they are accepted; --num-draft-tokens at most.",
            show_default=False,
        ),
    ] = False
