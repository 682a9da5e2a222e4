#!/usr/bin/env bash
# Stands for `python`, `ray`, `uv`, `trl` and launchers while `tamis train SCRIPT.sh` runs a script. A command
# that starts verl's trainer, `trl grpo`, `trl sft` or a script with a GRPOTrainer or an SFTTrainer becomes a run
# of tamis; every other one is passed on to the program it names. Beside it: `tamis` (the program), `options` and `overrides` of that
# command line, each word ended by a zero byte, `codes`, to which each run adds its exit code, and `pid`, the
# process of the last one.
here=$(cd "$(dirname "$0")/.." && pwd)
name=${0##*/}
processes=

# Runs `tamis train` with these words and ends.
train() {
    local word options=() code
    while IFS= read -r -d '' word; do options+=("$word"); done <"$here/options"
    (
        echo "$BASHPID" >"$here/pid"
        exec "$here/tamis" train "${options[@]}" "$@"
    )
    code=$?
    echo "$code" >>"$here/codes"
    exit "$code"
}

train_command() {
    train -- "$@" "${overrides[@]}"
}

# Trains with a script of Python if it has a GRPOTrainer or an SFTTrainer that `tamis train` can stand for.
train_script() {
    local script=${1-}
    [[ $script == *.py && -f $script ]] && grep -q 'GRPOTrainer\|SFTTrainer' "$script" && ! grep -q 'tamis\.trl' "$script" || return 1
    shift
    train "$script" "${overrides[@]}" ${processes:+"num_processes=$processes"} -- "$@"
}

# Words behind an interpreter.
try_python() {
    local words=("$@")
    while [ $# -gt 0 ]; do
        case $1 in
            -m)
                [[ ${2-} == verl.trainer.* || ${2-} == recipe.* ]] || return 1
                train_command python3 "${words[@]}"
                ;;
            -X | -W) shift 2 ;;
            -*) shift ;;
            *) train_script "$@" || return 1 ;;
        esac
    done
}

# Words behind a launcher, whose name is the first: its options, the script or module and its own words.
try_launched() {
    local words=("$@")
    shift
    while [ $# -gt 0 ] && [[ $1 != *.py ]]; do
        case $1 in
            --num[-_]processes=* | --nproc[-_]per[-_]node=*) processes=${1#*=} ;;
            --num[-_]processes | --nproc[-_]per[-_]node) processes=${2-} ;;
            verl.trainer.*sft*) train_command "${words[@]}" ;;
        esac
        shift
    done
    [[ $processes =~ ^[0-9]+$ ]] || processes=
    train_script "$@"
}

# Whether a program with its words is caught; if it is this does not return.
try() {
    local program=${1##*/}
    shift
    case $program in
        python*) try_python "$@" ;;
        torchrun) try_launched torchrun "$@" ;;
        accelerate) [ "${1-}" != launch ] || try_launched accelerate "$@" ;;
        trl) [[ ${1-} != grpo && ${1-} != sft ]] || train_command trl "$@" ;;
        uv)
            [ "${1-}" = run ] || return 1
            # Its options and their values come before the program.
            while shift && [ $# -gt 0 ]; do
                case ${1##*/} in
                    python* | torchrun | accelerate | trl) try "$@"; return ;;
                    *.py) try_python "$@"; return ;;
                esac
            done
            ;;
        ray)
            [ "${1-} ${2-}" = 'job submit' ] || return 1
            while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
            [ $# -eq 0 ] || shift
            while [[ ${1-} == env || ${1-} == [A-Z_]*=* ]]; do shift; done
            [ $# -eq 0 ] || try "$@"
            ;;
    esac
}

overrides=()
while IFS= read -r -d '' word; do overrides+=("$word"); done <"$here/overrides"
try "$name" "$@"

path=:$PATH:
while [[ $path == *":$here/bin:"* ]]; do path=${path/":$here/bin:"/:}; done
path=${path#:}
program=$(PATH=${path%:} type -P "$name")
if [ -z "$program" ]; then
    echo "$name: command not found" >&2
    exit 127
fi
exec "$program" "$@"
