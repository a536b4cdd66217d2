"""`python -m moeinspect`."""

from moeinspect.cli import entry

if __name__ == "__main__":
    entry()
