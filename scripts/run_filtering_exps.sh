#!/usr/bin/env bash
# The grid of RAGEN's filtering document: all | grpo | ppo, and after it whatever `tamis sweep` takes (`--dry-run`,
# `--base my_sokoban.yaml`, `--parallel 2`, `train.total_steps=50`). TAMIS_PROGRAM names a program that is built.
set -euo pipefail
case "${1:-}" in
    all | grpo | ppo) ;;
    *)
        echo "usage: $0 all|grpo|ppo [options of tamis sweep]" >&2
        exit 2
        ;;
esac
only=$1
shift
sweep="$(dirname "$0")/../configs/sweeps/ragen_filtering.yaml"
if [ -n "${TAMIS_PROGRAM:-}" ]; then
    exec "$TAMIS_PROGRAM" sweep "$sweep" --only "$only" "$@"
fi
exec cargo run --locked --quiet --release --manifest-path "$(dirname "$0")/../Cargo.toml" -- sweep "$sweep" --only "$only" "$@"
