"""Text from files and command lines, made safe to show."""


def printable(text: str) -> str:
    """`text` with control characters escaped: data of the user's must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
