#!/usr/bin/env bash
# Makes .venv ready and does nothing if it is already.  Usage: scripts/setup.sh [EXTRA]
# EXTRA is an extra of pyproject.toml, such as dev. MOEINSPECT_PYTHON names the interpreter (python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra=${1:-}
python=${MOEINSPECT_PYTHON:-python3}
ready=.venv/ready-for-${extra:-use}
state=$(cat pyproject.toml constraints.txt | cksum)" in $PWD"

if [ -x .venv/bin/python ] && [ -f "$ready" ] && [ "$(cat "$ready")" = "$state" ]; then
    exit 0
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "moeinspect needs Python 3.11 or newer, and '$python' is not; name another one: MOEINSPECT_PYTHON=python3.12 bash $0" >&2
    exit 2
fi
echo "Setting up .venv (a few minutes the first time) ..." >&2
if [ ! -x .venv/bin/python ]; then
    rm -rf .venv
    "$python" -m venv .venv
fi
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile \
    --constraint constraints.txt --editable ".${extra:+[$extra]}"
echo "$state" > "$ready"
