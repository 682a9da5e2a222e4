"""Makes the folders of this folder anew, with TRL 1.16.0 and with verl 0.9.1.

    PACKAGE=target/trl-package  # or another folder with the package `tamis` in it
    PYTHONPATH=$PACKAGE:python/tests_trl .venv-trl/bin/python crates/tamis-lab/tests/other_runs/make.py trl
    .venv-verl/bin/python crates/tamis-lab/tests/other_runs/make.py verl

`trl`: three steps train on each generation batch, the third and the sixth are followed by an evaluation.
`trl-chat`: messages, and an evaluation with 2 completions of each prompt instead of 4. `verl`: two steps of 3
groups of 2, one of whose rollouts has two outputs.
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def of_trl(name, *, chat, steps_per_generation, num_generations_eval):
    import toy
    from trl import GRPOConfig, GRPOTrainer

    def exact(completions, want, **_):
        return [float(wanted in toy.text_of(text)) for text, wanted in zip(completions, want, strict=True)]

    def length(completions, log_extra, **_):
        texts = [toy.text_of(text) for text in completions]
        log_extra("first", [text[:1] for text in texts])
        return [0.25 * len(text) for text in texts]

    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    data = toy.data(16, chat=chat)
    args = GRPOConfig(
        str(out),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_generations=4,
        num_generations_eval=num_generations_eval,
        steps_per_generation=steps_per_generation,
        max_completion_length=6,
        max_steps=6,
        logging_steps=1,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        log_completions=True,
        num_completions_to_print=0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        seed=1,
    )
    trainer = GRPOTrainer(
        model=toy.model(),
        reward_funcs=[exact, length],
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=toy.tokenizer(chat),
    )
    trainer.train()
    for file in out.rglob("*"):
        if file.is_file() and file.name != "trainer_state.json" and file.suffix != ".parquet":
            file.unlink()
    state = out / "checkpoint-6" / "trainer_state.json"
    state.write_text(json.dumps(json.loads(state.read_text())))
    shutil.rmtree(out / "checkpoint-3")


def of_verl():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    out = HERE / "verl"
    shutil.rmtree(out, ignore_errors=True)
    for step in (1, 2):
        rows = []
        for group in range(3):
            for rollout in range(2):
                outputs = 2 if (step, group, rollout) == (1, 2, 1) else 1
                for output in range(outputs):
                    is_last = output + 1 == outputs
                    score = float(group == 0 or (group == 2 and rollout == 1)) if is_last else 0.0
                    rows.append((f"user\n{group} + {step}?\nassistant\n", f"{group + step}", score, f"s{step}-{group}_{rollout}_{output}"))
        inputs, texts, scores, keys = (list(column) for column in zip(*rows, strict=True))
        PPOTrainer._write_generations(inputs, texts, ["3"] * len(rows), scores, {"uid": keys}, str(out), step)


if __name__ == "__main__":
    if sys.argv[1] == "trl":
        of_trl("trl", chat=False, steps_per_generation=3, num_generations_eval=None)
        of_trl("trl-chat", chat=True, steps_per_generation=1, num_generations_eval=2)
    else:
        of_verl()
