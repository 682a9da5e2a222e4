"""The buffer over the real TransferQueue, on a Ray of this process."""

import os
import threading
import unittest

from world import HAS_VERL, Case, tamis

if HAS_VERL:
    # No statistics, nothing of the network; and workers that do not wait for every other process of the machine.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "RAY_worker_niceness": "0"}
    import ray
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

N = 3
# The scores of a prompt's members; None: it fails. Members of other prompts differ.
SCORES = {0: [0.1] * N, 2: None, 3: [1.0] * N, 5: [float("nan"), 0.1, 0.1]}


class Trainer:
    """Puts prompts and rows into the queue as verl's workers do, each prompt after a while."""

    def __init__(self, mode, metric, batch_size, **kwargs):
        self.prompts = []
        self.threads = []
        self.global_steps = 1
        self.buffer = tamis.verl.ReplayBuffer(
            trainer_mode=mode,
            trainer_config={} if mode == "sync" else {"num_warmup_batches": 0},
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
            sampler_kwargs={"metric": metric, "poll_interval": 0.05, **kwargs},
            refill_fn=self.add_prompts,
        )
        self.name = f"{mode}-{metric}"

    def add_prompts(self, number):
        uids = [f"{self.name}-{len(self.prompts) + i}" for i in range(number)]
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)
        thread = threading.Thread(target=self.generate, args=[len(self.prompts), uids])
        self.prompts += uids
        self.threads.append(thread)
        thread.start()

    def generate(self, first, uids):
        for number, uid in enumerate(uids, first):
            tq.kv_put(key=uid, partition_id="train", tag={"status": "running"})
            scores = SCORES.get(number, [0.0, 1.0, 0.5])
            if scores is None:
                tq.kv_put(key=uid, partition_id="train", tag={"status": "failure"})
                continue
            rows = [
                {
                    "responses": torch.arange(2 + member),
                    # The reward is at the last token.
                    "rm_scores": torch.tensor([0.0] * (1 + member) + [score]),
                    "extra_fields": {"reward_extra_info": {"acc": score}},
                }
                for member, score in enumerate(scores)
            ]
            tq.kv_batch_put(
                keys=[f"{uid}_{member}_0" for member in range(N)],
                partition_id="train",
                fields=list_of_dict_to_tensordict(rows),
                tags=[{"seq_len": 2 + member} for member in range(N)],
            )
            tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})

    def step(self, batch_size):
        self.add_prompts(batch_size)
        batch, report = self.buffer.sample(global_steps=self.global_steps, partition_id="train", batch_size=batch_size)
        for thread in self.threads:
            thread.join()
        self.global_steps += 1
        return batch, report


@unittest.skipUnless(HAS_VERL, "verl is not installed")
class QueueTests(Case):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
        tq.init()

    @classmethod
    def tearDownClass(cls):
        tq.close()
        ray.shutdown()

    def test_batches(self):
        for mode, metric in (("sync", "acc"), ("sync", "reward"), ("colocate_async", "acc")):
            with self.subTest(mode=mode, metric=metric):
                trainer = Trainer(mode, metric, 4)
                batch, report = trainer.step(4)
                uids = list(dict.fromkeys(key.rsplit("_", 2)[0] for key in batch.keys))
                self.assertEqual(uids, [f"{mode}-{metric}-{number}" for number in (1, 4, 6, 7)])
                self.assertEqual(
                    sorted(batch.keys), [f"{uid}_{member}_0" for uid in sorted(uids) for member in range(N)]
                )
                data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["responses"])
                self.assertEqual([len(row) for row in data["responses"]], [tag["seq_len"] for tag in batch.tags])
                self.assertEqual(report["training/rollout_failure/evicted_samples"], 1)
                self.assertEqual(report["training/filter_groups/evicted_samples"], 3)
                self.assertEqual(report["groups/dropped/all_correct_total"], 1)
                self.assertEqual(report["groups/dropped/uniform_total"], 2)
                self.assertEqual(report["_dapo_filtered_reward_counts"], {0.1: 2, 1.0: 1})
                tq.kv_clear(keys=batch.keys, partition_id="train")
                batch, later = trainer.step(4)
                self.assertEqual(later["training/filter_groups/evicted_samples"], 0)
                tq.kv_clear(keys=batch.keys, partition_id="train")
                left = tq.kv_list().get("train", {})
                prompts = {key for key, tag in left.items() if tag.get("is_prompt")}
                self.assertLessEqual({key.rsplit("_", 2)[0] for key in left.keys() - prompts}, prompts)
                # All but those of two batches and the four that were lost.
                self.assertEqual(len(prompts), 0 if mode == "sync" else len(trainer.prompts) - 2 * 4 - 4)

    def test_metric_that_is_not_there(self):
        trainer = Trainer("sync", "accuracy", 1)
        with self.assertRaisesRegex(tamis.verl.SamplerError, "`acc`"):
            trainer.step(2)
        tq.kv_clear(keys=list(tq.kv_list()["train"]), partition_id="train")

    def test_reward_that_comes_later(self):
        trainer = Trainer("sync", "reward", 1)
        fields = list_of_dict_to_tensordict([{"responses": torch.arange(2)}])
        tq.kv_batch_put(keys=["early_0_0"], partition_id="train", fields=fields, tags=[{"seq_len": 2}])
        tag = {"is_prompt": True, "status": "finished", "global_steps": 1}
        tq.kv_put(key="early", partition_id="train", tag=tag)
        with self.assertRaisesRegex(tamis.verl.SamplerError, "`rm_scores` in the queue"):
            trainer.buffer.sample(1, "train", 1)
        tq.kv_clear(keys=["early", "early_0_0"], partition_id="train")


if __name__ == "__main__":
    unittest.main()
