#!/usr/bin/env bash
# Sets everything up and runs the main job on the embedded model: capture with overlap scheduling,
# disaggregation and a draft model, then compare with a target-only run. The trace stays in demo.h5.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

moeinspect=.venv/bin/moeinspect
(set -x; $moeinspect capture --overlap --disagg --draft builtin:tiny-draft --weights -o demo.h5 --force)
(set -x; $moeinspect diff demo.h5)
