"""Runs a script of TRL with stand-ins for its trainers: `tamis train train_grpo.py`, `tamis train train_sft.py`.

    python3 tamis_script.py        beside it: settings.json and tamis_reward.py

The script runs as `__main__` in its own interpreter. `GRPOTrainer(...).train()` writes both data sets and the arguments beside the folder
of the run, starts `tamis train` with them, and answers the run's reward requests: the functions stay in this process, on its main thread,
those that are `async` together. `SFTTrainer(...).train()` does the same without rewards. What has no counterpart is refused by name. If
TRL can be imported its own GRPOConfig, SFTConfig, TrlParser and the like are used, without what a configuration does with devices; otherwise stand-ins take their places.

settings.json: program (tamis), script, arguments (of the script), overrides (`key=value`), options (of `tamis train`), resume (a run
folder or null), dry_run. While a run is on, its process id is in the file `pid` beside it.
"""

import argparse
import ast
import asyncio
import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import traceback
import types

HERE = os.path.dirname(os.path.abspath(__file__))
SOCKET = "TAMIS_SCRIPT_REWARDS"
TIMEOUT = "10m"  # of one call; TRL has no limit

BRIDGE = '''\
"""Passes reward requests of a run on to the script that it was started from, and the answers back.
Written by `tamis train {script}`."""
import os, socket, sys, threading

place = os.environ.get("{variable}")
if place is None:
    sys.exit("this reward is a function of {script}, which does not run: `tamis train {script} --resume RUN_DIR` continues such a run")
peer = socket.socket(socket.AF_UNIX)
peer.connect(place)
peer.sendall(sys.argv[1].encode() + b"\\n")


def pass_requests():
    while data := os.read(0, 1 << 16):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


threading.Thread(target=pass_requests, daemon=True).start()
while data := peer.recv(1 << 16):
    while data:
        data = data[os.write(1, data) :]
'''

settings = {}
runner = None  # the module tamis_reward
answers = None  # file descriptor of the real standard output
trl_configs = []  # TRL's GRPOConfig and SFTConfig, if it is installed


def say(text):
    print(f"tamis: {text}", file=sys.stderr, flush=True)


def refuse(reasons, hint=None):
    """Ends the script, as a configuration that cannot be followed ends a run."""
    lines = [f"error: {settings['script']}: {reasons[0]}"]
    if len(reasons) > 1:
        lines = [f"error: {settings['script']} asks for what a run has not", *(f"  - {reason}" for reason in reasons)]
    lines += [f"  hint: {hint}"] if hint else []
    print("\n".join(lines), file=sys.stderr, flush=True)
    sys.exit(2)


# The objects that a script makes before it trains


class KeptConfig:
    """GRPOConfig and SFTConfig if there is no TRL: it keeps its arguments, and every other field is TRL's default or None."""

    DEFAULTS = {"eval_strategy": "no", "push_to_hub": False, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}

    def __init__(self, output_dir=None, **given):
        if output_dir is not None:
            given["output_dir"] = output_dir
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.DEFAULTS.get(name)


def given_arguments(config):
    """The fields of a GRPOConfig or SFTConfig that differ from their defaults, by name."""
    if isinstance(config, KeptConfig):
        return dict(vars(config))
    given = {}
    own = next((kind for kind in trl_configs if isinstance(config, kind)), None) or type(config)
    for field in dataclasses.fields(own):  # a subclass may have fields of the script's own
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(config, field.name, default)
        if field.init and value != default:
            given[field.name] = value
    return given


def plain(value):
    """A value that JSON does not know, as one that it does."""
    for name in ("tolist", "value"):  # arrays and numbers of NumPy and PyTorch; members of an enumeration
        if hasattr(value, name):
            held = getattr(value, name)
            return held() if callable(held) else held
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ in ("torch", "datetime"):
        return str(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")


LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules",
        "target_parameters": "lora_target_parameters", "modules_to_save": "lora_modules_to_save", "use_rslora": "use_rslora",
        "use_dora": "use_dora", "task_type": "lora_task_type"}  # fmt: skip
# Set by PEFT itself, or without effect on what is trained.
LORA_FREE = {"peft_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping", "runtime_config"}


def lora_arguments(config, reasons):
    """A LoraConfig as TRL's arguments."""
    if config is None:
        return {}
    values = dict(vars(config))
    if type(config).__name__ != "LoraConfig":
        reasons.append(f"peft_config is a {type(config).__name__}, and an adapter is a LoraConfig here")
        return {}
    known = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
    if dataclasses.is_dataclass(config):
        known = {**known, **vars(type(config)())}
    known["bias"] = "none"
    given = {"use_peft": True}
    for name in sorted(set(values) | {"r", "lora_alpha", "lora_dropout"}):
        value = values.get(name, known.get(name))
        if name in LORA:
            if value is not None and (value != known.get(name) or name in ("r", "lora_alpha", "lora_dropout")):
                given[LORA[name]] = value
        elif name not in LORA_FREE and not name.startswith("_") and value != known.get(name):
            reasons.append(f"LoraConfig.{name} has no counterpart: leave it out")
    return given


def adapter_of(model, reasons):
    """The adapter that a model of PEFT has, as TRL's arguments. One that has learned something is refused: a run begins a new one."""
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return {}
    if len(adapters) > 1:
        reasons.append(f"`model` has {len(adapters)} adapters: a run trains one")
        return {}
    if any("lora_B" in name and bool((weight != 0).any()) for name, weight in model.named_parameters()):
        reasons.append("the adapter of `model` has learned something, and a run begins a new one: merge it (`merge_and_unload`, `save_pretrained`)")
    return lora_arguments(next(iter(adapters.values())), reasons)


def frozen_weights(model):
    """How many weights of a model do not learn, in words; None if all do."""
    weights = [weight for _, weight in model.named_parameters()] if hasattr(model, "named_parameters") else []
    num_frozen = sum(not getattr(weight, "requires_grad", True) for weight in weights)
    return f"{num_frozen} of the {len(weights)} tensors" if num_frozen else None


def model_arguments(model, args, has_adapter, reasons):
    """Where the model is, and the parts of `model_init_kwargs` that have a counterpart."""
    given = {}
    if isinstance(model, (str, os.PathLike)):
        given["model_name_or_path"] = os.fspath(model)
    else:
        config = getattr(model, "config", None)
        name = getattr(config, "_name_or_path", None)
        given.update(adapter_of(model, reasons))
        if (quantized := getattr(config, "quantization_config", None)) is not None:
            given.update(quantization_arguments(quantized, "`model` is quantized", reasons))
        elif not given and not has_adapter and (frozen := frozen_weights(model)):
            reasons.append(f"{frozen} of `model` do not learn (`requires_grad=False`), and a run trains all weights, or an adapter: `peft_config`")
        if name:
            given["model_name_or_path"] = name
            say(f"the model is read from {name} anew: a change that the script made to it is not in there")
        else:
            reasons.append(f"`model` is a {type(model).__name__} without the name that it was loaded from: give the name or the folder")
    options = getattr(args, "model_init_kwargs", None) or {}
    if isinstance(options, str):
        options = json.loads(options)
    for name, value in options.items():
        if name == "revision" and value not in (None, "main"):
            given["model_revision"] = value
        elif name == "attn_implementation" and value is not None:
            given["attn_implementation"] = value
        elif name == "quantization_config" and value is not None:
            given.update(quantization_arguments(value, "model_init_kwargs['quantization_config']", reasons))
        elif name in ("load_in_4bit", "load_in_8bit") and value:
            given[name] = True
    return given


def quantization_arguments(config, what, reasons):
    """A BitsAndBytesConfig as TRL's arguments."""
    values = dict(config if isinstance(config, dict) else vars(config))
    for name in ("load_in_4bit", "load_in_8bit"):
        values.setdefault(name, getattr(config, name, False))  # a property of transformers' own
    if not (values.get("load_in_4bit") or values.get("load_in_8bit")):
        reasons.append(f"{what}: weights below an adapter are held in 4 bits by a BitsAndBytesConfig(load_in_4bit=True), and in no other way")
        return {}
    if set(values.get("llm_int8_skip_modules") or ()) - {"lm_head"}:
        reasons.append(f"{what}: llm_int8_skip_modules has no counterpart, because all linear layers but the output head are quantized")
    given = {name: True for name in ("load_in_4bit", "load_in_8bit") if values.get(name)}
    if values.get("bnb_4bit_quant_type") is not None:
        given["bnb_4bit_quant_type"] = values["bnb_4bit_quant_type"]
    elif "load_in_4bit" in given:
        given["bnb_4bit_quant_type"] = "fp4"  # the default of a BitsAndBytesConfig
    if values.get("bnb_4bit_use_double_quant"):
        given["use_bnb_nested_quant"] = True
    return given


class Registered:
    """A reward of TRL by its name, if there is no TRL."""

    def __init__(self, name, **keys):
        self.__name__, self.keys = name, keys


RESERVED = ("score", "acc", "reward", "seq_reward", "seq_final_reward", "token_level_rewards")  # scores that tamis computes itself


def free_name(name, taken):
    """A name for the scores of a function: its own, unless tamis or another function has it."""
    name = "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in name).strip("_") or "completions"
    if name in RESERVED and not name.endswith("reward"):
        name += "_reward"
    number, free = 1, name
    while free in taken or free in RESERVED:
        number += 1
        free = f"{name}_{number}"
    return free


REGISTERED = {
    "accuracy_reward": {"kind": "math_verify"},
    "think_format_reward": {"kind": "think_format"},
}


def command_of_script():
    """The script and its arguments, without secrets. The run's configuration keeps them: they continue it."""
    words, is_secret = [settings["script"]], False
    for word in settings["arguments"]:
        name, _, value = word.partition("=")
        names_secret = word.startswith("-") and re.search("token|secret|passw|api.?key", name, re.IGNORECASE)
        if is_secret and not word.startswith("-"):
            word = "..."
        elif names_secret and value:
            word = f"{name}=..."
        words.append(word)
        is_secret = bool(names_secret and not value)
    return words


def rewards_of(functions, weights, folder, columns, reasons):
    """The section `reward`, and the functions that stay here, by name."""
    functions = functions if isinstance(functions, (list, tuple)) else [functions]
    weights = list(weights) if weights is not None else [1.0] * len(functions)
    if len(weights) != len(functions):
        reasons.append(f"reward_weights has {len(weights)} weights for {len(functions)} functions")
        weights = [1.0] * len(functions)
    rewards, kept = [], {}
    for function, weight in zip(functions, weights):
        named = getattr(function, "func", function)  # of `functools.partial`
        name = function.rstrip("/").rsplit("/", 1)[-1] if isinstance(function, str) else getattr(named, "__name__", type(named).__name__)
        name = free_name(name, [reward["name"] for reward in rewards])
        if isinstance(function, str):
            keys = {"kind": "model", "path": function}
        elif isinstance(function, Registered):
            keys = function.keys
        elif not callable(function) or hasattr(function, "parameters"):
            reasons.append(f"reward_funcs: {name} is a {type(function).__name__}: give a function, or the name of a reward model")
            continue
        else:
            problem = runner.misfit(function, "trl", {}, sorted(columns)) if columns else None
            if problem:
                reasons.append(f"reward_funcs: {name}{inspect.signature(function)} cannot be called as TRL calls it: {problem}")
                continue
            kept[name] = function
            argv = [sys.executable, os.path.abspath(os.path.join(folder, "reward.py")), name, *command_of_script()]
            keys = {"kind": "command", "argv": argv, "num_processes": 4 if inspect.iscoroutinefunction(function) else 1, "timeout": TIMEOUT}
        rewards.append({"name": name, **keys, "weight": weight})
    return rewards, kept


def write_rows(rows, path, what, reasons, shape=None):
    """A data set as JSONL; the names of its columns. `shape` makes a row of a row."""
    columns, number = set(), -1
    if not hasattr(rows, "__len__"):
        reasons.append(f"{what} is a stream of unknown length: load the rows that are to be trained on (`streaming=False`, `take(n)`)")
        return columns
    with open(path, "w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            row = row if shape is None else shape(row)
            columns.update(row)
            try:
                file.write(json.dumps(row, ensure_ascii=False, default=plain) + "\n")
            except TypeError as error:
                columns_at = [name for name, value in row.items() if not is_json(value)]
                reasons.append(f"{what}: row {number} holds {error} in column {', '.join(columns_at)}: a row is text, numbers, lists and objects")
                return columns
    if number < 0:
        reasons.append(f"{what} has no rows")
    return columns


def is_json(value):
    try:
        json.dumps(value, default=plain)
    except TypeError:
        return False
    return True


def free_folder(path):
    """The folder of a new run, as tamis numbers them."""
    path = os.path.normpath(path)
    number = 1
    while os.path.lexists(numbered := path if number == 1 else f"{path}-{number}"):
        number += 1
    return numbered


CALLBACKS = "nothing of the script is called while a run trains; `run.loggers` and metrics.jsonl have every figure"


class Trainer:
    """What the stand-ins for TRL's trainers have in common. Arguments that a run cannot follow are refused when one is made."""

    NAME = SUFFIX = ""
    MEASURES = True  # whether `tamis eval` measures what evaluate() does
    # The attributes of a finished trainer, as far as a run has them.
    _DONE = ("log_metrics", "save_metrics", "save_state", "create_model_card", "end", "log_completions")

    def _begin(self, model, args, train_dataset, eval_dataset, processing_class, quantization_config, peft_config, free, unknown):
        reasons = overridden(type(self))
        reasons += [f"{self.NAME}({name}=...) is not followed: {why}" for name, (value, why) in free.items() if value]
        reasons += [f"{self.NAME} has no argument {name} here" for name in unknown]
        if train_dataset is None:
            reasons.append(f"{self.NAME} has no train_dataset")
        self._arguments = model_arguments(model, args, peft_config is not None, reasons)
        if quantization_config is not None:
            self._arguments.update(quantization_arguments(quantization_config, f"{self.NAME}(quantization_config=...)", reasons))
        name = self._arguments.get("model_name_or_path", "model")
        self.args = KeptConfig(output_dir=f"{name.split('/')[-1]}-{self.SUFFIX}") if args is None else args
        if peft_config is not None and "use_peft" in self._arguments:
            reasons.append("`model` has an adapter, and `peft_config` names another: give one of them")
        self._arguments.update(lora_arguments(peft_config, reasons))
        tokenizer = getattr(processing_class, "tokenizer", processing_class)  # of a processor of images
        own = getattr(tokenizer, "name_or_path", name if processing_class is None else None)
        if own is None or os.path.normpath(own) != os.path.normpath(name):
            reasons.append(f"{self.NAME}(processing_class=...) is that of {own}, and the model's own is taken, {name}: save it beside the model")
        self._template = getattr(processing_class, "chat_template", None) or getattr(tokenizer, "chat_template", None)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class, self.peft_config = processing_class, peft_config
        self.accelerator = types.SimpleNamespace(
            print=print, is_main_process=True, is_local_main_process=True, num_processes=1, process_index=0, wait_for_everyone=lambda: None
        )
        self.state = runner.trainer_state({"epoch": 0, "trainer_state": {}})
        self._run, self._functions = None, {}
        return reasons

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._DONE:
            return lambda *_, **__: None
        refuse([f"trainer.{name} is not there: {THERE} are"])

    def is_world_process_zero(self):
        return True

    def train(self, resume_from_checkpoint=None, **unknown):
        """Trains in a run of tamis. Returns what TRL returns: `global_step`, `training_loss`, `metrics`."""
        reasons = [f"train({name}=...) is not followed" for name in unknown]
        if resume_from_checkpoint:
            reasons.append("train(resume_from_checkpoint=...) is not followed: `tamis train SCRIPT --resume RUN_DIR` continues a run")
        reasons += overridden(type(self))  # since it was made
        replaced = [name for name in vars(self) if name not in self._known and callable(getattr(self, name)) and hasattr(self._stand, name)]
        replaced += [name for name in vars(self) if name not in self._known and inspect.isroutine(getattr(self, name)) and name not in replaced]
        if replaced := sorted(set(vars(self._stand)) - OWN) + replaced:
            reasons.append(f"methods of {self.NAME} are replaced ({', '.join(replaced)}), and a run has none of them")
        reasons += lacking(self, settings["script"])
        settings["trained"] = True
        run = settings["resume"] or free_folder(getattr(self.args, "output_dir", None) or "trainer_output")
        command, functions = self._prepare(run, reasons)
        if reasons:
            refuse(reasons)
        if settings["dry_run"]:
            sys.exit(subprocess.run([settings["program"], "config", "import", "--", *command], stdout=answers).returncode)
        sys.stdout.flush()
        start = ["--resume", run, *settings["overrides"]] if settings["resume"] else ["--", *command]
        code = asyncio.run(train_and_answer([settings["program"], "train", *settings["options"], *start], functions))
        if code != 0:
            sys.exit(code)
        self._run, self._functions = run, functions
        self._read_state()
        return outcome(run)

    def _read_state(self):
        """What a finished trainer's `state` holds, from the run's metrics."""
        rows = rows_of(self._run)
        last = rows[-1] if rows else {}
        known = {"global_step": last.get("step", 0), "max_steps": last.get("step", 0)}
        self.state = runner.trainer_state({"epoch": last.get("epoch", 0.0), "trainer_state": {**known, "log_history": rows}})

    def log(self, logs, *_, **__):
        """Adds figures to `state.log_history`, as TRL does."""
        self.state.log_history.append({**logs, "step": self.state.global_step})

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """The last validation's figures. Without one, or with other rows, the last checkpoint is measured."""
        if self._run is None:
            refuse(["evaluate() before train() has nothing to measure"], "eval_on_start=True measures before the first step")
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if rows is None:
            refuse(["evaluate() has no eval_dataset"])
        validated = [found for row in rows_of(self._run) if (found := self._figures(row, metric_key_prefix))]
        if rows is self.eval_dataset and validated:
            return validated[-1]
        if not self.MEASURES:
            refuse(["evaluate() has only the run's own validation"], "eval_strategy='epoch' or 'steps' asks for one")
        reasons, path = [], os.path.join(f"{os.path.normpath(self._run)}.script", "evaluated.jsonl")
        write_rows(rows, path, "evaluate(eval_dataset=...)", reasons)
        if reasons:
            refuse(reasons)
        written = os.path.join(f"{os.path.normpath(self._run)}.script", "evaluated.json")
        command = [settings["program"], "eval", self._run, "--json", f"data.val={json.dumps([path])}"]
        with open(written, "wb") as file:
            code = asyncio.run(train_and_answer(command, self._functions, file))
        if code != 0:
            sys.exit(code)
        with open(written, encoding="utf-8") as file:
            return self._figures(json.load(file)["metrics"], metric_key_prefix)

    @property
    def _stand(self):
        """The class that stands for TRL's."""
        return next(kind for kind in STANDS if isinstance(self, kind))

    def _validates(self):
        strategy = getattr(self.args, "eval_strategy", "no")
        return getattr(strategy, "value", strategy) != "no"

    def _given(self, run):
        """The arguments of the run in TRL's names."""
        given = {**given_arguments(self.args), **self._arguments, "output_dir": run}
        for name in ("model_init_kwargs", "reward_weights", "resume_from_checkpoint"):
            given.pop(name, None)
        return {name: value for name, value in given.items() if value is not None}

    def _write_eval(self, folder, reasons, shape=None):
        """Writes the data sets of the validation. Returns their paths."""
        is_named = isinstance(self.eval_dataset, dict)
        sets = {f"eval-{name}": rows for name, rows in self.eval_dataset.items()} if is_named else {"eval": self.eval_dataset}
        names, paths = [], []
        for name, rows in sets.items():
            names.append(free_name(name, names))
            paths.append(os.devnull if settings["resume"] else os.path.join(folder, f"{names[-1]}.jsonl"))
            write_rows(rows, paths[-1], f"eval_dataset[{name.removeprefix('eval-')!r}]" if is_named else "eval_dataset", reasons, shape)
        return paths

    def _write_arguments(self, given, path, reasons):
        """Writes the arguments as a file of TRL."""
        folder = os.path.dirname(path)
        if isinstance(self._template, str):
            given["chat_template_path"] = os.path.join(folder, "chat_template.jinja")
            with open(given["chat_template_path"], "w", encoding="utf-8") as file:
                file.write(self._template)
        lines = [f"# What {settings['script']} gave its {self.NAME}, in TRL's names."]
        for name, value in given.items():
            if is_json(value):
                lines.append(f"{name}: {json.dumps(value, default=plain)}")
            else:
                reasons.append(f"{name} is a {type(value).__name__}, which has no counterpart")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def save_model(self, output_dir=None, _internal_call=False):
        """The model of the last checkpoint, in Hugging Face layout, in this folder: beside what is there already."""
        if self._run is None:
            refuse(["save_model() before train() has nothing to save"])
        target = output_dir or self.args.output_dir
        # The folder of the run may have a number.
        target = self._run if os.path.abspath(target) == os.path.abspath(self.args.output_dir or "") else target
        os.makedirs(target, exist_ok=True)
        made = os.path.join(target, ".export")
        code = subprocess.run([settings["program"], "export", self._run, made], stdout=subprocess.DEVNULL).returncode
        if code != 0:
            sys.exit(code)
        for name in os.listdir(made):
            os.replace(os.path.join(made, name), os.path.join(target, name))
        os.rmdir(made)
        say(f"wrote the model to {target}")

    def push_to_hub(self, *_, **__):
        run = self._run or "RUN_DIR"
        refuse(["push_to_hub() is not followed"], f"`tamis export {run} FOLDER`, and upload that: `hf upload NAME FOLDER`")


class GRPOTrainer(Trainer):
    """Stands for TRL's."""

    NAME, SUFFIX = "GRPOTrainer", "GRPO"

    def __init__(self, model=None, reward_funcs=None, args=None, train_dataset=None, eval_dataset=None, processing_class=None,
                 reward_processing_classes=None, callbacks=None, optimizers=(None, None), quantization_config=None, peft_config=None,
                 tools=None, rollout_func=None, environment_factory=None, **unknown):  # fmt: skip
        free = {
            "callbacks": (callbacks, CALLBACKS),
            "optimizers": (tuple(optimizers) != (None, None), "the optimizer is AdamW, set by the arguments"),
            "reward_processing_classes": (reward_processing_classes, "a reward model is read with its own tokenizer"),
            "tools": (tools, "`environment` with `kind: tools` has functions of a Python file as tools (docs/environments.md)"),
            "rollout_func": (rollout_func, "`environment` plays games of several turns (docs/environments.md)"),
            "environment_factory": (environment_factory, "`environment` has Python environments of a file (docs/environments.md)"),
        }
        reasons = self._begin(model, args, train_dataset, eval_dataset, processing_class, quantization_config, peft_config, free, unknown)
        if not reward_funcs:
            reasons.append("GRPOTrainer has no reward_funcs")
        if reasons:
            refuse(reasons)
        self.reward_funcs = reward_funcs
        self._known = set(vars(self))

    def _figures(self, row, prefix):
        """The validation of a line of metrics, in TRL's names and tamis's."""
        return evaluation(row, prefix)

    def _prepare(self, run, reasons):
        """Writes what the run reads. Returns the words of its configuration, and the functions that stay here."""
        folder = f"{os.path.normpath(run)}.script"
        os.makedirs(folder, exist_ok=True)
        given = self._given(run)
        is_resumed = settings["resume"] is not None
        path = os.devnull if is_resumed else os.path.join(folder, "train.jsonl")
        columns = write_rows(self.train_dataset, path, "train_dataset", reasons)
        words = [f"data.train={json.dumps(path)}"]
        if self.eval_dataset is not None and self._validates():
            words.append(f"data.val={json.dumps(self._write_eval(folder, reasons))}")
        rewards, functions = rewards_of(self.reward_funcs, getattr(self.args, "reward_weights", None), folder, columns, reasons)
        words.append(f"reward={json.dumps(rewards)}")
        if is_resumed:
            return [], functions
        with open(os.path.join(folder, "reward.py"), "w", encoding="utf-8") as file:
            file.write(BRIDGE.format(script=settings["script"], variable=SOCKET))
        arguments = os.path.join(folder, "grpo.yaml")
        self._write_arguments(given, arguments, reasons)
        return [arguments, *words, *settings["overrides"]], functions


class SFTTrainer(Trainer):
    """Stands for TRL's."""

    NAME, SUFFIX = "SFTTrainer", "SFT"
    MEASURES = False
    # The columns that TRL reads.
    COLUMNS = ("messages", "prompt", "completion", "text", "tools")
    REFUSED = {
        "images": "supervised fine-tuning reads text",
        "image": "supervised fine-tuning reads text",
        "chat_template_kwargs": "`data.chat_template_kwargs` holds for every row",
    }

    def __init__(self, model=None, args=None, data_collator=None, train_dataset=None, eval_dataset=None, processing_class=None,
                 compute_loss_func=None, compute_metrics=None, callbacks=None, optimizers=(None, None), optimizer_cls_and_kwargs=None,
                 preprocess_logits_for_metrics=None, quantization_config=None, peft_config=None, formatting_func=None, **unknown):  # fmt: skip
        free = {
            "data_collator": (data_collator, "rows are packed without padding"),
            "compute_loss_func": (compute_loss_func, "the loss is the cross-entropy"),
            "compute_metrics": (compute_metrics, "validation computes the loss only"),
            "preprocess_logits_for_metrics": (preprocess_logits_for_metrics, "validation computes the loss only"),
            "callbacks": (callbacks, CALLBACKS),
            "optimizers": (tuple(optimizers) != (None, None), "the optimizer is AdamW, set by the arguments"),
            "optimizer_cls_and_kwargs": (optimizer_cls_and_kwargs, "the optimizer is AdamW, set by the arguments"),
        }
        reasons = self._begin(model, args, train_dataset, eval_dataset, processing_class, quantization_config, peft_config, free, unknown)
        if formatting_func is not None and getattr(self.args, "completion_only_loss", None):
            reasons.append("formatting_func makes texts, which have no completion: leave completion_only_loss out")
        if self._validates() and eval_dataset is None:
            reasons.append("eval_strategy asks for a validation, and there is no eval_dataset")
        if reasons:
            refuse(reasons)
        self._format = formatting_func
        self._known = set(vars(self))

    def _figures(self, row, prefix):
        """The validation of a line of metrics, in TRL's names."""
        names = {"sft/val_loss": f"{prefix}_loss", "sft/val_accuracy": f"{prefix}_mean_token_accuracy"}
        return {theirs: row[ours] for ours, theirs in names.items() if ours in row}

    def _shape(self, row):
        """A row with the columns that TRL reads, under tamis's names."""
        if self._format is not None:
            return {"text": self._format(row)}
        field = getattr(self.args, "dataset_text_field", None) or "text"
        row = {**row, "text": row[field]} if field in row else row
        return {name: row[name] for name in self.COLUMNS if row.get(name) is not None}

    def _prepare(self, run, reasons):
        """Writes what the run reads. Returns the words of its configuration, and no functions."""
        folder = f"{os.path.normpath(run)}.script"
        os.makedirs(folder, exist_ok=True)
        given = self._given(run)
        given.pop("dataset_text_field", None)
        path = os.devnull if settings["resume"] else os.path.join(folder, "train.jsonl")
        first = next(iter(self.train_dataset), {}) if hasattr(self.train_dataset, "__len__") else {}
        reasons += [f"train_dataset: {why}" for name, why in self.REFUSED.items() if first.get(name) is not None]
        columns = write_rows(self.train_dataset, path, "train_dataset", reasons, self._shape)
        if not reasons and not columns - {"tools"}:
            there = ", ".join(sorted(first)) or "no rows"
            reasons.append(f"train_dataset has no column messages, prompt and completion, or text: it has {there}")
        words = [f"sft.data={json.dumps([path])}"]
        if self._validates():
            words.append(f"sft.val={json.dumps(self._write_eval(folder, reasons, self._shape))}")
        if settings["resume"] is not None:
            return [], {}
        if hasattr(self.train_dataset, "__len__"):
            given["num_rows"] = len(self.train_dataset)
        arguments = os.path.join(folder, "sft.yaml")
        self._write_arguments(given, arguments, reasons)
        return ["trl", "sft", "--config", arguments, *words, *settings["overrides"]], {}


# The classes that stand for TRL's.
STANDS = (GRPOTrainer, SFTTrainer)

# Made with a class, or called by it before a run begins.
NO_METHODS = ("__init__", "__init_subclass__", "__annotate__", "__annotate_func__", "__annotations_cache__")
OWN = {name for kind in STANDS for name in vars(kind)} | {"__abstractmethods__"}


def overridden(kind):
    """Refusals of the methods that a subclass has: a run would call none of them."""
    reasons = []
    stand = next(base for base in kind.__mro__ if base in STANDS)
    for base in kind.__mro__[: kind.__mro__.index(stand)]:
        # What is no function itself may bind one: `property`, `partialmethod`, `cached_property`.
        binds = lambda name, value: callable(value) or hasattr(value, "__get__") and not name.startswith("__")
        names = [name for name, value in vars(base).items() if binds(name, value) and name not in NO_METHODS]
        reasons += [f"{base.__name__}.{name} is a method of a subclass of {stand.NAME}, which a run never calls" for name in names]
    return reasons


# Nodes whose parts may never run.
BRANCHES = tuple(getattr(ast, name) for name in ("If", "IfExp", "Try", "TryStar", "BoolOp", "While", "Match", "Lambda") if hasattr(ast, name))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
THERE = "train(), evaluate(), save_model(), log(), state, args, accelerator and the run's folder"


class Uses(ast.NodeVisitor):
    """What a script reads of its trainer, on every way through it: the attributes, as nodes."""

    def __init__(self, tree):
        name_of = lambda node: getattr(node, "id", getattr(node, "attr", None))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        stands = {stand.NAME for stand in STANDS}
        kinds = stands | {kind.name for kind in classes if stands & set(map(name_of, kind.bases))}
        makes = lambda node: isinstance(getattr(node, "value", None), ast.Call) and name_of(node.value.func) in kinds
        self.made = [node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and makes(node)]
        targets = [target for node in self.made for target in getattr(node, "targets", [getattr(node, "target", None)])]
        self.names = {target.id for target in targets if isinstance(target, ast.Name)}
        self.given = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        self.found = []
        self.visit(tree)

    def visit(self, node):
        is_main = isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and getattr(node.test.left, "id", None) == "__name__"
        if isinstance(node, BRANCHES) and not is_main:
            return
        # Another function may never be called.
        if isinstance(node, FUNCTIONS) and not any(part in self.made for part in ast.walk(node)):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.found.append(node)
        self.generic_visit(node)

    def is_trainer(self, node):
        return isinstance(node, ast.Name) and node.id in self.names


def lacking(trainer, script):
    """Refusals of what a script reads of its trainer and a run has not: before it trains, and not after."""
    try:
        with open(script, encoding="utf-8") as file:
            uses = Uses(ast.parse(file.read()))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    reasons = []
    has = lambda held, name: name.startswith("_") or name in uses.given or name in vars(held) or hasattr(type(held), name)
    for node in uses.found:
        value, name = node.value, node.attr
        if uses.is_trainer(value) and name == "push_to_hub":
            reasons.append(f"{value.id}.push_to_hub() (line {node.lineno}) is not followed: `tamis export` writes a folder to upload")
        elif uses.is_trainer(value) and name == "evaluate" and not (trainer.MEASURES or trainer._validates()):
            reasons.append(f"{value.id}.evaluate() (line {node.lineno}) has no validation to read: eval_strategy='epoch' or 'steps' asks for one")
        elif uses.is_trainer(value) and not has(trainer, name) and name not in trainer._DONE:
            reasons.append(f"{value.id}.{name} (line {node.lineno}) is not there: {THERE} are")
        elif isinstance(value, ast.Attribute) and uses.is_trainer(value.value) and value.attr in ("state", "accelerator"):
            if not has(getattr(trainer, value.attr), name):
                reasons.append(f"{value.value.id}.{value.attr}.{name} (line {node.lineno}) is not there")
    return reasons


def rows_of(run):
    """The lines of a run's metrics."""
    try:
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except OSError:
        return []


def evaluation(metrics, prefix):
    """The figures of a validation: with tamis's names, and means over all prompts with TRL's."""
    found = {name: value for name, value in metrics.items() if name.startswith("val-")}
    sums = {}
    for name, value in found.items():
        _, _, rest = name.partition("/")
        mean, _, n = rest.rpartition("/mean@")
        source, _, what = mean.rpartition("/")
        if not n.isdigit() or value is None:
            continue
        number = found.get(f"val-aux/{source}/num_prompts", 1.0)
        total, of = sums.get(what, (0.0, 0.0))
        sums[what] = total + value * number, of + number
    named = lambda what: f"{prefix}_reward" if what == "reward" else f"{prefix}_rewards/{what}/mean"
    return {**found, **{named(what): total / of for what, (total, of) in sums.items() if of > 0}}


def outcome(run):
    """The last figures of a run."""
    metrics = {}
    for row in rows_of(run):
        metrics.update(row)
    if not metrics:  # the folder has another name by an override
        say("the run's folder is not where the script's output_dir is: save_model() will not find it")
    return types.SimpleNamespace(global_step=metrics.get("step"), training_loss=metrics.get("actor/pg_loss", metrics.get("sft/loss")), metrics=metrics)


async def train_and_answer(command, functions, output=None):
    """Starts the run, and answers what it asks of the functions until it ends; its exit code. `output`: a file for what it prints."""

    async def answer(reader, writer):
        name = (await reader.readline()).decode().strip()
        items = []
        while line := await reader.readline():
            items.append(json.loads(line))
            if items[-1]["remaining"]:
                continue
            if name in functions:
                replies = await runner.answer_trl(functions[name], items, {})
            else:
                replies = [{"error": f"{settings['script']} has no reward function {name}; it has {', '.join(functions)}"}] * len(items)
            writer.write("".join(map(runner.line_of, items, replies)).encode())
            await writer.drain()
            items = []
        writer.close()

    async def answer_all(reader, writer):
        with contextlib.suppress(ConnectionError):  # the run has ended the process that passed a request on
            await answer(reader, writer)

    place = os.path.join(HERE, "rewards")
    pid = os.path.join(HERE, "pid")
    server = await asyncio.start_unix_server(answer_all, place, limit=1 << 28)
    child = await asyncio.create_subprocess_exec(*command, stdout=output, env={**os.environ, SOCKET: place})
    with open(pid, "w") as file:
        file.write(str(child.pid))
    # The run gets the signal, too, saves and ends. A handler that ignores it would be inherited.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return await child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        os.unlink(pid)
        server.close()


# The modules that a script imports


def refused_class(name, why):
    def made(self, *_, **__):
        refuse([f"{name} is not followed: {why}"])

    return type(name, (), {"__init__": made})


RLOO = refused_class("RLOOTrainer", "GRPOTrainer is; `objective.advantage.kind=rloo` over a GRPO script is that estimator")


def attach(*_, **__):
    script = settings["script"]
    refuse(["tamis.trl.attach keeps TRL's trainer, and `tamis train` stands for it"], f"run it with python: `python3 {script}`")


def kept_class(name):
    """A class that keeps what it is given."""
    return type(name, (), {"__init__": lambda self, **given: self.__dict__.update(given)})


def dataclass_of(name, **defaults):
    # Annotated only with their types, which is what the parser needs.
    fields = []
    for field, default in defaults.items():
        kind, value = default if isinstance(default, tuple) else (type(default), default)
        fields.append((field, kind, dataclasses.field(default=value)))
    return dataclasses.make_dataclass(name, fields)


ModelConfig = dataclass_of(
    "ModelConfig", model_name_or_path=(str, None), model_revision="main", dtype="float32", attn_implementation=(str, None), use_peft=False,
    lora_r=16, lora_alpha=32, lora_dropout=0.05, lora_target_modules=(list, None), lora_target_parameters=(list, None),
    lora_modules_to_save=(list, None), lora_task_type="CAUSAL_LM", use_rslora=False, use_dora=False, load_in_8bit=False, load_in_4bit=False,
    bnb_4bit_quant_type="nf4", use_bnb_nested_quant=False, bnb_4bit_quant_storage=(str, None),
)  # fmt: skip
ScriptArguments = dataclass_of(
    "ScriptArguments", dataset_name=(str, None), dataset_config=(str, None), dataset_train_split="train", dataset_test_split="test",
    dataset_streaming=False,
)  # fmt: skip


class TrlParser:
    """Parses `--name value` into the classes that it is given; what no class has a field for goes to GRPOConfig or SFTConfig."""

    def __init__(self, dataclass_types=(), **_):
        self.kinds = list(dataclass_types) if isinstance(dataclass_types, (list, tuple)) else [dataclass_types]

    def parse_args_and_config(self, args=None, **_):
        words = list(sys.argv[1:] if args is None else args)
        if "--config" in words:
            refuse(["TRL is not installed in this Python, and its --config is TRL's own"], "install TRL, or write its values as options")
        parser = argparse.ArgumentParser(allow_abbrev=False)
        for kind in self.kinds:
            for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
                many = {"nargs": "+"} if "list" in str(field.type) else {}
                flag = {"nargs": "?", "const": True} if field.type in (bool, "bool") else {}
                read = {bool: is_true, "bool": is_true, int: int, "int": int, float: float, "float": float}.get(field.type, str)
                default = None if field.default is dataclasses.MISSING else field.default
                parser.add_argument(f"--{field.name}", type=read, default=default, **many, **flag)
        known, rest = parser.parse_known_args(words)
        others = {}
        while rest:
            word = rest.pop(0)
            if not word.startswith("--"):
                refuse([f"the argument {word} follows no option"])
            name, _, value = word[2:].partition("=")
            if not value:
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            others[name.replace("-", "_")] = value
        made = []
        for kind in self.kinds:
            if dataclasses.is_dataclass(kind):
                made.append(kind(**{field.name: getattr(known, field.name) for field in dataclasses.fields(kind)}))
            else:
                made.append(kind(**{name: typed(value) for name, value in others.items()}))
        return tuple(made)


def is_true(text):
    return text.lower() in ("true", "yes", "t", "y", "1")


def typed(text):
    try:
        return json.loads(text if text not in ("True", "False") else text.lower())
    except ValueError:
        return text


def get_peft_config(config):
    if not config.use_peft:
        return None
    names = {theirs: ours for ours, theirs in LORA.items()}
    return LoraConfig(**{names[name]: value for name, value in vars(config).items() if name in names})


def get_quantization_config(config):
    if not (config.load_in_4bit or config.load_in_8bit):
        return None
    return BitsAndBytesConfig(
        load_in_4bit=config.load_in_4bit, load_in_8bit=config.load_in_8bit, bnb_4bit_quant_type=config.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=config.use_bnb_nested_quant,
    )  # fmt: skip


def get_soft_overlong_punishment(max_completion_len, soft_punish_cache):
    keys = {"kind": "soft_overlong", "max_length": max_completion_len, "buffer": soft_punish_cache}
    return Registered("soft_overlong_punishment_reward", **keys)


LoraConfig = kept_class("LoraConfig")
BitsAndBytesConfig = kept_class("BitsAndBytesConfig")


def missing(module):
    """What a stand-in module returns for a name that it lacks."""

    def named(name):
        if name.startswith("_"):
            raise AttributeError(name)
        refuse([f"{module}.{name} is needed, and {module} is not installed in {sys.executable}"], f"`pip install {module.split('.')[0]}` there")

    return named


def stand_ins(has_trl, has_peft):
    """The modules that are made here, by name."""
    trainer = {"GRPOTrainer": GRPOTrainer, "SFTTrainer": SFTTrainer, "RLOOTrainer": RLOO}
    modules = {"tamis.trl": {"attach": attach, "__getattr__": missing("tamis.trl")}, "trl.trainer.grpo_trainer": {"GRPOTrainer": GRPOTrainer},
               "trl.trainer.sft_trainer": {"SFTTrainer": SFTTrainer}}  # fmt: skip
    if importlib.util.find_spec("tamis") is None:
        modules["tamis"] = {"__path__": []}
    if not has_trl:
        trl = {**trainer, "GRPOConfig": KeptConfig, "SFTConfig": KeptConfig, "ModelConfig": ModelConfig, "ScriptArguments": ScriptArguments,
               "TrlParser": TrlParser, "get_peft_config": get_peft_config, "get_quantization_config": get_quantization_config, "get_kbit_device_map": lambda: None}  # fmt: skip
        rewards = {name: Registered(name, **keys) for name, keys in REGISTERED.items()}
        rewards["get_soft_overlong_punishment"] = get_soft_overlong_punishment
        modules["trl"] = modules["trl.trainer"] = {**trl, "__path__": [], "__getattr__": missing("trl")}
        modules["trl.trainer.grpo_config"] = {"GRPOConfig": KeptConfig}
        modules["trl.trainer.sft_config"] = {"SFTConfig": KeptConfig}
        modules["trl.rewards"] = {**rewards, "__getattr__": missing("trl.rewards")}
    if not has_peft:
        kind = types.SimpleNamespace(CAUSAL_LM="CAUSAL_LM")
        modules["peft"] = {"LoraConfig": LoraConfig, "TaskType": kind, "__getattr__": missing("peft")}
    return modules


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the stand-ins."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name not in self.modules:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package="__path__" in self.modules[name])

    def exec_module(self, module):
        vars(module).update(self.modules[module.__name__])


def stand_before_trl():
    """Puts the stand-ins in their places. Returns whether TRL is installed."""
    try:
        import trl
        import trl.trainer

        trl_configs.extend((trl.GRPOConfig, trl.SFTConfig))
    except (ImportError, RuntimeError) as error:
        say(f"TRL cannot be imported in {sys.executable} ({error}): stand-ins take its place")
        for name in [name for name in sys.modules if name.split(".")[0] == "trl"]:
            del sys.modules[name]
        return False
    # Attributes beyond a configuration's fields depend on devices.
    for module in (trl, trl.trainer):
        module.GRPOTrainer, module.SFTTrainer, module.RLOOTrainer = GRPOTrainer, SFTTrainer, RLOO
    for config in trl_configs:
        quiet = type(config.__name__, (config,), {"__post_init__": lambda self: None, "__module__": __name__})
        for module in (trl, trl.trainer, sys.modules[config.__module__]):
            setattr(module, config.__name__, quiet)
    if not trl.__version__.startswith("1.16."):
        say(f"this is TRL {trl.__version__}; what the script does not set has the defaults of TRL 1.16")
    return True


def main():
    global runner, answers
    with open(os.path.join(HERE, "settings.json"), encoding="utf-8") as file:
        settings.update(json.load(file))
    spec = importlib.util.spec_from_file_location("tamis_reward", os.path.join(HERE, "tamis_reward.py"))
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    if settings["dry_run"]:
        # The configuration is the only output.
        answers = os.dup(1)
        os.dup2(2, 1)
    script = settings["script"]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.argv = [script, *settings["arguments"]]
    has_trl = stand_before_trl()
    sys.meta_path.insert(0, Finder(stand_ins(has_trl, importlib.util.find_spec("peft") is not None)))
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:  # before the run began, which has an ending of its own
        sys.exit(130)
    except Exception as error:  # as Python shows it, without the frames of this file
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        if trace is None and getattr(error, "filename", None) is None:  # no line of it has run, and Python names no file
            print(f'  File "{script}"', file=sys.stderr)
        traceback.print_exception(type(error), error, trace)
        if isinstance(error, ModuleNotFoundError) and error.name:
            packages = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}
            package = packages.get(error.name.split(".")[0], error.name.split(".")[0])
            print(f"  hint: install it there (`{sys.executable} -m pip install {package}`), or name an interpreter that has it: "
                  f"`tamis train {script} run.python=PATH`; if `{error.name}` is yours, add its folder to PYTHONPATH", file=sys.stderr)  # fmt: skip
        sys.exit(1)
    if "trained" not in settings:
        refuse(["it ended, and train() of a GRPOTrainer or an SFTTrainer was never called"], "other trainers of TRL run as they are, with python")


if __name__ == "__main__":
    main()
