#!/usr/bin/env bash
# The whole recipe, on a machine with a GPU: about ten minutes. Names of steps as arguments run those alone.
# A rehearsal in a minute on a CPU: SIZE=toy DEVICE=cpu COMPILE=off DATA=/tmp/toy PAIR=/tmp/toy/pair training/run_all.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
data=${DATA:-training-data}
pair=${PAIR:-moeinspect/runtime/models/pair}
training=(--data "$data" --size "${SIZE:-full}" --device "${DEVICE:-cuda}" --compile "${COMPILE:-on}")

for step in "${@:-corpus tokenizer train distill export prompts evaluate card}"; do
  for name in $step; do
    case $name in
      corpus | tokenizer) options=(--data "$data") ;;
      train | distill) options=("${training[@]}") ;;
      *) options=(--data "$data" --pair "$pair") ;;
    esac
    "$python" -u -m "training.$name" "${options[@]}"
  done
done
