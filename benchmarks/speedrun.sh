#!/usr/bin/env bash
# The speed run: T5 v1.1 base by nanoT5's recipe, in the fastest settings of this package, on one GPU. It prepares shards,
# trains from them, and adds a row to a leaderboard. Killed, the same command goes on.
#
#   TRAIN_FILE="c4/en/c4-train.*.json.gz" VALIDATION_FILE="c4/en/c4-validation.*.json.gz" \
#       benchmarks/speedrun.sh runs/speedrun --preprocessing_num_workers 16
#
# The flags are those of examples/pretrain_t5.py, and come after those of the recipe. TARGET_LOSS (default: 1.953, which
# nanoT5 reaches on C4 in 16 hours of an A100) is the validation loss whose time is taken. Not run on a GPU yet.
set -euo pipefail

out=${1:?the folder of the run}
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=$here/../examples/configs/recipes/pretrain_nanot5.yaml
flags=("$recipe" --train_file "${TRAIN_FILE:?files of the text}" --validation_file "${VALIDATION_FILE:?files of held-out text}"
    --streaming false --eval_strategy steps --eval_steps 0.02 "$@" --tokenized_dataset_dir "$out/shards" --output_dir "$out/run")

if [[ ! -e $out/shards/manifest.json ]]; then
    python "$here/../examples/pretrain_t5.py" "${flags[@]}" --preprocessing_only true \
        --do_train false --do_eval false
fi
python "$here/../examples/pretrain_t5.py" "${flags[@]}"
python "$here/run_cost.py" --run "$out/run" --target_loss "${TARGET_LOSS:-1.953}" --leaderboard "$out/../leaderboard.jsonl"
