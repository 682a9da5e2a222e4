#!/usr/bin/env python3
"""Prints the keys of YAML configurations with their values, a line each: key, tab, value as JSON.

    extract.py FILE.yaml...     the first file that has a key gives its value; Hydra's lists of other files are left out

This is how the `.keys` files beside it were made: those of verl from its package (`pip download --no-deps verl==0.9.1`, unzipped), where
the trainers' configurations are composed in `verl/trainer/config/_generated_ppo*_trainer.yaml`; those of RAGEN from `config/*.yaml`.
Values are facts of the interface; nothing else is taken over.
"""

import json
import sys

import yaml


def flatten(path, node, keys):
    if isinstance(node, dict) and node:
        for name, inner in node.items():
            flatten(f"{path}.{name}" if path else str(name), inner, keys)
    elif not path.startswith("defaults"):
        keys.setdefault(path, node)


keys = {}
for file in sys.argv[1:]:
    with open(file) as text:
        flatten("", yaml.safe_load(text), keys)
for key in sorted(keys):
    print(key, json.dumps(keys[key]), sep="\t")
