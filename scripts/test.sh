#!/usr/bin/env bash
# Sets everything up and runs lint, types and all tests. More arguments go to pytest, whose summary comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh dev

.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/mypy
exec .venv/bin/python -m pytest -n 2 --dist worksteal "$@"
