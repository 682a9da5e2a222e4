"""Judges completions with math-verify, as TRL's `accuracy_reward` calls it: JSON lines on standard input and output.

    python3 tamis_math_verify.py

Each request is answered before the next one is read, so that a completion that takes too long can be
identified. math-verify itself ends most work that takes longer than the limits below. If it cannot, tamis
kills this process and starts it again. A request {"introduce": ...} is answered with the versions of the
packages, and with what is wrong with them.
"""

import importlib.metadata
import json
import os
import sys

# One completion's: TRL's limits.
PARSING_SECONDS = 10
VERIFYING_SECONDS = 5
# Numbers that grow without end take no more memory than this.
MEMORY_BYTES = 4 << 30

# The versions whose verdicts the tests compare. With another antlr the same math-verify gives other verdicts.
TESTED = {"math-verify": "0.9.0", "latex2sympy2_extended": "1.11.0", "antlr4-python3-runtime": "4.13.2"}


def versions():
    found = {}
    for name in TESTED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def misfit(found):
    """Why these packages cannot judge; None if they can."""
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return f"{sys.executable} lacks {' and '.join(missing)}"
    antlr = found["antlr4-python3-runtime"]
    if antlr != TESTED["antlr4-python3-runtime"]:
        return (
            f"{sys.executable} has antlr4-python3-runtime {antlr}, with which math-verify gives other verdicts than with "
            f"{TESTED['antlr4-python3-runtime']} (hydra-core brings 4.9.3)"
        )
    return None


def limit_memory():
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        if most == resource.RLIM_INFINITY or most > MEMORY_BYTES:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, most))
    except (ImportError, OSError, ValueError):  # not everywhere
        pass


def load():
    """The function from a completion and a ground truth to a verdict."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # An answer has to be LaTeX, in a box if there is one; the ground truth may be anything that math-verify reads.
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )

    def judge(completion, truth):
        gold = parse(truth, parsing_timeout=PARSING_SECONDS)
        if not gold:
            return {"score": None}
        answer = parse(completion, extraction_config=[config], extraction_mode="first_match", parsing_timeout=PARSING_SECONDS)
        verdict = float(verify(gold, answer, timeout_seconds=VERIFYING_SECONDS))
        # The answer that was read, for majority votes: as sympy prints its value.
        try:
            read = {"log_extra": {"pred": str(answer[0])}} if answer else {}
        except Exception:  # Python prints no integer of more than 4,300 digits
            read = {}
        return {"scores": {"score": verdict, "acc": verdict}, **read}

    return judge


def main():
    # The answers keep the real standard output; what a package prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    found = versions()
    problem = misfit(found)
    judge = None
    for line in sys.stdin:
        request = json.loads(line)
        if "introduce" in request:
            signature = ", ".join(f"{name} {version}" for name, version in found.items())
            reply = {"introduction": {"style": "math_verify", "fits": [], "signature": signature, "problem": problem}}
        else:
            if judge is None:
                judge = load()
                limit_memory()
            truth = request["ground_truth"]
            try:
                reply = {"score": None} if truth is None else judge(request["completion"], truth)
            except Exception as error:
                reply = {"error": f"math-verify failed: {type(error).__name__}: {error}"[:1000]}
            reply["id"] = request["id"]
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
