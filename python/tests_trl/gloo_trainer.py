"""Started by torchrun on several processes: trains in one shape after another, and writes each process's
results."""

import hashlib
import json
import sys
import traceback
from pathlib import Path

import pandas
import torch
from toy import KEEP_ALL, Case, Judge, Killed, Killing, alike, course, seeing, text_of
from transformers import TrainerCallback

FOLDER = Path(sys.argv[1])
SHAPES = {
    "whole groups": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    "split groups": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
    "odd groups": {"num_generations": 3, "per_device_train_batch_size": 9, "gradient_accumulation_steps": 1},
    "inside a batch": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "max_steps": 4,
    },
}

SCHEDULES = {"odd groups": {"mode": "rounds", "gen_batch_size": 5, "max_num_gen_batches": None}}
"""Five groups of three on two processes: one row too many."""


class Gloo(Case):
    def __init__(self, folder):
        super().__init__("fit")
        self.folder = folder

    def sieved(self, filter="variance", sieve=None, **settings):
        return super().sieved(filter, sieve, ddp_backend="gloo", ddp_timeout=60, **settings)

    def trainer(self, **settings):
        return super().trainer(**({"ddp_backend": "gloo", "ddp_timeout": 60} | settings))


def weights(trainer):
    digest = hashlib.sha256()
    for parameter in trainer.accelerator.unwrap_model(trainer.model).parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def outcome(trainer, judge=None):
    place = trainer.sieve.state()
    return {
        "weights": weights(trainer),
        "course": course(trainer),
        "totals": trainer.sieve.totals,
        "state": {name: place[name] for name in ("epoch", "place", "next_group", "steps")},
        "seen": getattr(trainer, "seen", []),
        "asked": judge.asked if judge else [],
    }


def shape(case, name):
    def columns(row, completions, log_extra, **_):
        log_extra("row_of_it", list(row))
        if row[0] % 2:
            log_extra("text_of_it", [text_of(completion) for completion in completions])
        return [0.0] * len(row)

    judge = Judge()
    trainer = case.sieved(
        cls=seeing(),
        rewards=[judge, columns],
        reward_weights=[1.0, 0.0],
        log_completions=True,
        num_completions_to_print=0,
        sieve={"record": case.folder / "record", "schedule": SCHEDULES.get(name)},
        **SHAPES[name],
    )
    case.fit(trainer)
    result = outcome(trainer, judge)
    if trainer.accelerator.is_main_process:
        tables = [pandas.read_parquet(file) for file in sorted((case.folder / "out" / "completions").iterdir())]
        result["table"] = [json.loads(table.to_json(orient="records")) for table in tables]
    return result


def keep_all(case, name):
    alone = case.fit(case.trainer(**SHAPES[name]))
    sieved = case.fit(case.sieved(KEEP_ALL, **SHAPES[name]))
    return {"alone": [weights(alone), course(alone)], "sieved": [weights(sieved), course(sieved)]}


def resume(case):
    keywords = SHAPES["inside a batch"] | {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    whole = Judge()
    one = case.fit(case.sieved(rewards=whole, out="whole", **keywords))
    halves = Judge()
    killed = case.sieved(rewards=halves, out="halves", **keywords)
    killed.add_callback(Killing(3))
    try:
        case.fit(killed)
    except Killed:
        pass
    # The rest of a batch is a file of each process.
    second = case.sieved(rewards=halves, out="halves", **keywords)
    case.fit(second, resume_from_checkpoint=True)
    return {"whole": outcome(one, whole), "halves": outcome(second, halves)}


def refused(case):
    """A file of one process is missing: all refuse."""
    rank = torch.distributed.get_rank()
    if rank == 1:
        (case.folder.parent / "resume" / "halves" / "checkpoint-3" / "tamis_sieve_1.pt").unlink()
    keywords = SHAPES["inside a batch"] | {"max_steps": 6}
    trainer = case.sieved(out="new", **keywords)
    try:
        case.fit(trainer, resume_from_checkpoint=str(case.folder.parent / "resume" / "halves" / "checkpoint-3"))
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def used_folder(case):
    """Only the main process reads the folder: all refuse."""
    trainer = case.sieved(sieve={"record": case.folder.parent / "whole groups" / "record"}, **SHAPES["whole groups"])
    try:
        case.fit(trainer)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def file_as_folder(case):
    """Only the main process makes the folder: all refuse."""
    (case.folder / "file").touch()
    trainer = case.sieved(sieve={"record": case.folder / "file" / "record"}, **SHAPES["whole groups"])
    try:
        case.fit(trainer)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def full_disk(case):
    """Only the main process writes: all end, with the batch before."""

    class Blocking(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 1 and torch.distributed.get_rank() == 0:
                (case.folder / "record" / "rollouts" / "step_2.part").mkdir()

    trainer = case.sieved(sieve={"record": case.folder / "record"}, **SHAPES["whole groups"])
    trainer.add_callback(Blocking())
    try:
        case.fit(trainer)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)} | outcome(trainer)
    return {}


def nothing_kept(case):
    trainer = case.sieved(rewards=alike, sieve={"schedule": {"max_num_gen_batches": 2}}, **SHAPES["odd groups"])
    try:
        case.fit(trainer)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), "place": trainer.sieve.state()["place"]}
    return {}


SCENARIOS = {
    **{name: lambda case, name=name: shape(case, name) for name in SHAPES},
    "keep all, whole groups": lambda case: keep_all(case, "whole groups"),
    "keep all, split groups": lambda case: keep_all(case, "split groups"),
    "resume": resume,
    "refused": refused,
    "used folder": used_folder,
    "file as folder": file_as_folder,
    "full disk": full_disk,
    "nothing kept": nothing_kept,
}

results = {}
for title, scenario in SCENARIOS.items():
    place = FOLDER / title
    place.mkdir(exist_ok=True)
    try:
        results[title] = scenario(Gloo(place))
    except Exception:
        results[title] = {"failed": traceback.format_exc()}
        traceback.print_exc()
    torch.distributed.barrier()
(FOLDER / f"rank_{torch.distributed.get_rank()}.json").write_text(json.dumps(results))
torch.distributed.destroy_process_group()
