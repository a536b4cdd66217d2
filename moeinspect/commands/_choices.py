"""Values of options that take one of a few words."""

from enum import StrEnum


class Color(StrEnum):
    """Values of --color."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Format(StrEnum):
    """Values of --format."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class Dtype(StrEnum):
    """Values of --dtype."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Engine(StrEnum):
    """Values of --engine."""

    LOCAL = "local"
    TRANSFORMERS = "transformers"
    SGLANG = "sglang"
    VLLM = "vllm"


class Transfer(StrEnum):
    """Values of --transfer."""

    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"
