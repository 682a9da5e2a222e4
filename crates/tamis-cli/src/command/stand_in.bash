#!/usr/bin/env bash
# Stands for `python`, `python3` and `ray` while `tamis train SCRIPT.sh` runs a script. A command that starts
# verl's trainer becomes a run of tamis; every other one is passed on to the program it names. Beside it:
# `tamis` (the program), `options` and `overrides` of that command line, each word ended by a zero byte, and
# `codes`, to which each run adds its exit code, and `pid`, the process of the last one.
here=$(cd "$(dirname "$0")/.." && pwd)
name=${0##*/}

starts_trainer() {
    while [ $# -gt 1 ]; do
        case $1 in
            -m) [[ $2 == verl.trainer.* || $2 == recipe.* ]]; return ;;
            -X | -W) shift 2 ;;
            -*) shift ;;
            *) return 1 ;;
        esac
    done
    return 1
}

train() {
    local word options=() overrides=() code
    while IFS= read -r -d '' word; do options+=("$word"); done <"$here/options"
    while IFS= read -r -d '' word; do overrides+=("$word"); done <"$here/overrides"
    (
        echo "$BASHPID" >"$here/pid"
        exec "$here/tamis" train "${options[@]}" -- python3 "$@" "${overrides[@]}"
    )
    code=$?
    echo "$code" >>"$here/codes"
    exit "$code"
}

if [ "$name" != ray ]; then
    ! starts_trainer "$@" || train "$@"
elif [ "${1-} ${2-}" = 'job submit' ]; then
    words=("$@")
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
    [ $# -eq 0 ] || shift
    while [[ ${1-} == env || ${1-} == [A-Z_]*=* ]]; do shift; done
    if [[ ${1##*/} == python* ]]; then
        shift
        ! starts_trainer "$@" || train "$@"
    fi
    set -- "${words[@]}"
fi

path=:$PATH:
while [[ $path == *":$here/bin:"* ]]; do path=${path/":$here/bin:"/:}; done
path=${path#:}
program=$(PATH=${path%:} type -P "$name")
if [ -z "$program" ]; then
    echo "$name: command not found" >&2
    exit 127
fi
exec "$program" "$@"
