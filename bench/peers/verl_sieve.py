#!/usr/bin/env python3
"""tamis's replay buffer beside verl's own, on the same histories.

    pip download verl==0.9.1 --no-deps -d FOLDER && python3 bench/peers/verl_sieve.py FOLDER/verl-0.9.1-py3-none-any.whl

The world is that of verl_buffer.py, beside this file: prompt number i has the same lengths and scores whichever
buffer asks for it, and both look at the queue every two seconds. Needs tamis and numpy.

Columns: groups generated for each that is trained on, or is kept for a later batch at the end (without those in flight
then), looks at the queue for each step, kept groups thrown away for each that is trained on, and the mean number of
policy versions between drawing a group and training on it.
"""

import argparse
import logging
import sys

import verl_buffer
from verl_buffer import WARM_UP_BATCHES

MODES = ("sync", "colocate_async")
KEEP_RATES = (0.2, 0.4, 0.8)
REFILLS = ("expected", "exact")


def sieve(refill):
    def make(module, mode, common):
        name = "verl.trainer.ppo.v1.replay_buffer"
        while name:
            sys.modules.setdefault(name, module)
            name = name.rpartition(".")[0]
        from tamis.verl import buffer

        buffer.tq = buffer.time = module.tq
        ahead = {} if mode == "sync" else {"num_warmup_batches": WARM_UP_BATCHES}
        kwargs = {"metric": "acc", "refill": refill, "max_num_gen_batches": None}
        return buffer.ReplayBuffer(**common | {"trainer_config": ahead, "sampler_kwargs": kwargs})

    return make


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=verl_buffer.BATCH, help="groups of a batch")
    parser.add_argument("--median", type=float, default=100, help="tokens of a completion")
    parser.add_argument("--sigma", type=float, default=0.6, help="deviation of their logarithm")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    verl_buffer.BATCH = given.batch
    heads = f"{'mode':<15} {'keep rate':>9} {'buffer':<14} {'generated':>9} {'polls':>6} {'surplus':>8} {'lag':>5}"
    print(f"{heads}   of verl's")
    for mode in MODES:
        for keep in KEEP_RATES:
            makes = {"verl": verl_buffer.builtin} | {f"tamis {refill}": sieve(refill) for refill in REFILLS}
            own = None
            for name, make in makes.items():
                generated, polls, surplus, _, lag, waiting, in_flight = verl_buffer.run(
                    given.wheel, mode, keep, given, make
                )
                # Those that wait for a later batch cost what those of this one cost.
                generated = (generated - in_flight) / (1.0 + waiting)
                own = own or (generated, polls)
                ratio = f"{generated / own[0]:.2f} of groups, {polls / own[1]:.2f} of polls"
                figures = f"{generated:>9.3f} {polls:>6.2f} {surplus:>8.3f} {lag:>5.2f}"
                print(f"{mode:<15} {keep:>9} {name:<14} {figures}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
