"""Cells of a notebook: the sieve over an array, a run, its figures and completions as tables."""

# %% Which groups have signal?
import os

import tamis

rewards = [[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
print(tamis.Filter("variance").keep(rewards))

# %% A run.
run = tamis.train(
    "quickstart",
    {
        "run.name": "notebook",
        "train.total_steps": int(os.environ.get("MAX_STEPS", "20")),
        "sft.steps": 60,
        "validate.max_prompts": 64,
    },
)

# %% What it learned, step by step.
for row in tamis.Run(run.path, frames="list").metrics():
    print(row["step"], row.get("all/critic/score/mean"), row.get("val-core/arithmetic/acc/mean@1"))

# %% What it answered.
for row in tamis.Run(run.path, frames="list").rollouts(verdict="trained")[:4]:
    print(repr(row["prompt"]), repr(row["completion"]), row["reward"])

# %% A folder for vLLM or transformers.
print(run.export("my-model"))
