"""Makes tests/golden/hf/sft (a tiny model with a tokenizer) and tests/golden/trl_sft.json.gz: what TRL's SFTTrainer makes of rows.

    .venv-trl/bin/python tests/golden/make_sft.py

Each case is a data set of one layout. Its figures are those of one batch of all its rows: token ids and labels as TRL's collator gives
them (-100: no loss), the loss of `SFTTrainer.compute_loss` with `num_items_in_batch`, and the norm of its gradient.
"""

import gzip
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE / "hf/sft"
# ChatML with the blocks that mark the assistant's turns.
TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def message(role, content):
    return {"role": role, "content": content}


PAIRS = [
    {"prompt": "What is two and two? ", "completion": "It is four."},
    {"prompt": "Name a sieve.\n", "completion": "A tamis, of course: it is round, like a drum."},
    {"prompt": "1+1=", "completion": "2"},
]
CHATS = [
    {"prompt": [message("user", "What is two and two?")], "completion": [message("assistant", "It is four.")]},
    {
        "prompt": [message("system", "Be brief."), message("user", "Name a sieve.")],
        "completion": [message("assistant", "A tamis.")],
    },
]
TURNS = [
    {
        "messages": [
            message("user", "What is two and two?"),
            message("assistant", "Four é."),
            message("user", "And three?"),
            message("assistant", "Five."),
        ]
    },
    {"messages": [message("system", "Be brief."), message("user", "Name a sieve."), message("assistant", "A tamis.")]},
]
TEXTS = [{"text": "A tamis is a drum sieve."}, {"text": "It is round."}]
CASES = [
    ("pairs", PAIRS, {}, "answers"),
    ("pairs_whole", PAIRS, {"completion_only_loss": False}, "all"),
    ("pairs_cut", PAIRS, {"max_length": 20}, "answers"),
    ("chats", CHATS, {}, "answers"),
    ("turns", TURNS, {"assistant_only_loss": True}, "answers"),
    ("turns_whole", TURNS, {}, "completions"),
    ("texts", TEXTS, {}, "answers"),
]


def make_model():
    shutil.rmtree(MODEL, ignore_errors=True)
    MODEL.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE / "hf/tokenizer" / name, MODEL / name)
    (MODEL / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(MODEL)


def case(name, rows, options, loss_on):
    model = Qwen3ForCausalLM.from_pretrained(MODEL, attn_implementation="eager", dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.SFTConfig(
            output_dir=folder, per_device_train_batch_size=len(rows), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            dataloader_drop_last=False, **options,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        # In the order of the rows.
        inputs = trainer.data_collator([trainer.train_dataset[index] for index in range(len(rows))])
        model.train()
        num_items = (inputs["labels"][..., 1:] != -100).sum()
        loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=num_items)
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))
    lengths = inputs["attention_mask"].sum(1).tolist()
    return {
        "name": name,
        "params": {"loss_on": loss_on, "max_length": options.get("max_length")},
        "inputs": {"rows": rows},
        "outputs": {
            "input_ids": [row[:length].tolist() for row, length in zip(inputs["input_ids"], lengths)],
            "labels": [row[:length].tolist() for row, length in zip(inputs["labels"], lengths)],
            "num_items": int(num_items),
            "loss": float(loss),
            "grad_norm": float(norm),
        },
        "dtype": "float32",
    }


def main():
    torch.set_num_threads(1)
    if not (MODEL / "model.safetensors").exists():
        make_model()
    source = {
        "package": "trl", "version": trl.__version__, "function": "SFTTrainer.compute_loss",
        "note": f"transformers {transformers.__version__}, torch {torch.__version__}, model hf/sft, eager attention",
    }  # fmt: skip
    text = json.dumps({"source": source, "cases": [case(*each) for each in CASES]}, ensure_ascii=False)
    with open(HERE / "trl_sft.json.gz", "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as out:
        out.write(text.encode())


if __name__ == "__main__":
    main()
