"""Makes the folders of this folder anew, with TRL 1.16.0, verl 0.9.1, and verifiers 0.4.0 and 0.3.1.

    PACKAGE=target/trl-package  # or another folder with the package `tamis` in it
    PYTHONPATH=$PACKAGE:python/tests_trl .venv-trl/bin/python crates/tamis-lab/tests/other_runs/make.py trl
    .venv-verl/bin/python crates/tamis-lab/tests/other_runs/make.py verl
    PYTHON crates/tamis-lab/tests/other_runs/make.py traces     # verifiers==0.4.0 installed
    PYTHON crates/tamis-lab/tests/other_runs/make.py results    # verifiers==0.3.1 installed

`trl`: three steps train on each generation batch, the third and the sixth are followed by an evaluation.
`trl-chat`: messages, and an evaluation with 2 completions of each prompt instead of 4. `verl`: two steps of 3
groups of 2, one of whose rollouts has two outputs. `verifiers`: an evaluation of 2 tasks with 3 rollouts each, one of
which failed without a trace. `verifiers-results`: the same, as versions up to 0.3 save it. `prime-rl`: 3 steps of
episodes that verifiers' own code makes, in the folders of prime-rl's file monitor (it is in no package).
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


def episode(number, task, rollout, *, score, group=None, step=None, judge=False, failed=False):
    from verifiers.v1 import episode as ep
    from verifiers.v1 import trace as tr
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import TaskData
    from verifiers.v1.types import AssistantMessage, SystemMessage, ToolMessage, Usage, UserMessage

    class Sum(TaskData):
        answer: str = ""

    data = Sum(idx=task, prompt=f"{task} + 1?", system_prompt="Add.", answer=str(task + 1))
    task_of_trace = tr.TraceTask[Sum](type="SumTask", data=data)

    def node(parent, message, sampled=False):
        return MessageNode(parent=parent, message=message, sampled=sampled, timestamp=0.0)

    def trace(name, nodes, finish="stop", rewards=None, **fields):
        sampled = [place for place, made in enumerate(nodes) if made.sampled]
        calls = [
            tr.ModelCall(
                node=place,
                finish_reason=finish if place == sampled[-1] else "tool_calls",
                usage=Usage(prompt_tokens=5, completion_tokens=2 + rollout),
            )
            for place in sampled
        ]
        return tr.Trace(
            id=f"t{number}{name}",
            task=task_of_trace,
            agent=tr.AgentInfo(config=WireAgentConfig.model_construct(), name=name, trainable=name != "judge"),
            nodes=nodes,
            calls=calls,
            rewards=rewards or {},
            is_completed=True,
            ok=True,
            timing=tr.Timing(start=0.0),
            **fields,
        )

    prompt = [node(None, SystemMessage(content="Add.")), node(0, UserMessage(content=f"{task} + 1?"))]
    answer = str(task + 1 if score else task)
    if rollout == 1:
        turns = [
            node(1, AssistantMessage(content="I count."), True),
            node(2, ToolMessage(tool_call_id="c", content="on fingers")),
            node(3, AssistantMessage(content=answer), True),
        ]
    else:
        turns = [node(1, AssistantMessage(content=answer), True)]
    rewards = {"exact": tr.Reward(score=score), "brief": tr.Reward(score=0.5, weight=0.1)}
    finish = "length" if rollout == 2 else "stop"
    traces = [trace("agent", prompt + turns, finish, rewards, metrics={"turns": float(len(turns))})]
    if judge:
        asked = [node(None, UserMessage(content="?")), node(0, AssistantMessage(content="yes"), True)]
        traces.insert(0, trace("judge", asked))
    run = None
    if step is not None:
        run = ep.TrainRunInfo(id="run", work=ep.TrainWorkInfo(step=step))
    return ep.Episode(
        id=f"e{number}",
        env=ep.EnvInfo(id="sums"),
        task=task_of_trace,
        group=ep.GroupInfo(id=group) if group else None,
        run=run,
        ok=not failed,
        errors=[tr.Error(type="SandboxError", message="lost")] if failed else [],
        traces=[] if failed else traces,
    )


def of_traces():
    from verifiers.v1.utils.trace_store import write_episode

    out = HERE / "verifiers"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    # As they finish: rollouts of two tasks among each other.
    for number, (task, rollout) in enumerate([(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (1, 2)]):
        score = float(task == 0 and rollout != 1)
        failed = (task, rollout) == (1, 2)
        write_episode(out, episode(number, task, rollout, score=score, judge=rollout == 0, failed=failed))
    out = HERE / "prime-rl"
    shutil.rmtree(out, ignore_errors=True)
    # Group b begins in the window of step 1 and ends in that of step 2; group d is not done.
    arrivals = {1: "aab", 2: "bcc", 3: "d"}
    tasks, seen, number = {"a": 0, "b": 1, "c": 0, "d": 2}, {}, 0
    for step, groups in arrivals.items():
        lines = []
        for group in groups:
            rollout = seen.get(group, 0)
            seen[group] = rollout + 1
            score = float(group == "a" or (group == "b" and rollout == 0))
            made = episode(number, tasks[group], rollout, score=score, group=f"group-{group}", step=1)
            lines.append(made.to_record())
            number += 1
        for subset in ("all", "effective"):
            if subset == "all" or step < 3:
                folder = out / "rollouts" / f"step_{step}" / "train" / subset
                folder.mkdir(parents=True)
                # `effective` lacks groups of one reward.
                rows = [row for row in lines if subset == "all" or row["group"]["id"] == "group-b"]
                (folder / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    means = {f"train/agg/{subset}/agent/reward/mean": 1.05 for subset in ("all", "effective")}
    metrics = [{"step": 1, "time": 0.0, **means}, {"step": 1, "time": 0.0, "entropy/all/mean": 0.5}]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))


def of_results():
    from verifiers.legacy.types import State
    from verifiers.legacy.utils.save_utils import save_outputs, state_to_output

    out = HERE / "verifiers-results"
    shutil.rmtree(out, ignore_errors=True)
    rows = []
    for task in range(2):
        for rollout in range(3):
            score = float(task == 0 and rollout != 1)
            state = State(
                example_id=task,
                prompt=[{"role": "system", "content": "Add."}, {"role": "user", "content": f"{task} + 1?"}],
                completion=[{"role": "assistant", "content": str(task + 1 if score else task)}],
                answer=str(task + 1),
                info={},
                reward=score + 0.05,
                metrics={"exact": score, "brief": 0.5},
                timing={"generation_ms": 10.0, "scoring_ms": 1.0, "total_ms": 11.0},
                is_completed=True,
                is_truncated=rollout == 2,
                stop_condition="max_turns_reached",
                token_usage={"input_tokens": 5.0, "output_tokens": 2.0 + rollout},
            )
            if (task, rollout) == (1, 2):
                state["error"] = RuntimeError("lost")
            rows.append(state_to_output(state))
    save_outputs(rows, out)
    (out / "metadata.json").write_text(json.dumps({"env_id": "sums", "num_examples": 2, "rollouts_per_example": 3}))


if __name__ == "__main__":
    if sys.argv[1] in ("traces", "results"):
        of_traces() if sys.argv[1] == "traces" else of_results()
    elif sys.argv[1] == "trl":
        of_trl("trl", chat=False, steps_per_generation=3, num_generations_eval=None)
        of_trl("trl-chat", chat=True, steps_per_generation=1, num_generations_eval=2)
    else:
        of_verl()
