"""`tamis config export --as verl`: verl's own configuration takes the overrides of the command."""

import os
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

try:
    import verl
    from hydra import compose, initialize_config_dir
except ImportError:
    verl = None

PROGRAM = os.environ.get("TAMIS_PROGRAM")

BASE = """
model: {path: some/model}
data: {train: t.parquet, val: v.parquet, train_batch_size: 64}
reward: [{kind: python, path: mine.py, function: score, style: verl}]
rollout: {n: 16, max_response_length: 1024, temperature: 0.8}
train: {ppo_mini_batch_size: 32, total_steps: 100, optimizer: {learning_rate: 2.0e-6}}
"""


@unittest.skipUnless(verl, "there is no verl")
@unittest.skipUnless(PROGRAM, "there is no program `tamis`")
class ExportTests(unittest.TestCase):
    def composed(self, *overrides):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine.yaml").write_text(BASE)
            words = [PROGRAM, "config", "export", "--as", "verl", "mine.yaml", *overrides]
            script = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
        command = script.split("verl.trainer.main_ppo", 1)[1].replace("\\\n", " ").replace('"$@"', "")
        home = Path(verl.__file__).parent / "trainer" / "config"
        with initialize_config_dir(config_dir=str(home), version_base=None):
            return compose("ppo_trainer", overrides=shlex.split(command)), script

    def test_a_recipe(self):
        config, _ = self.composed("filter={kind: variance, metric: acc}", "schedule.refill=true", "schedule.max_num_gen_batches=7")
        rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
        self.assertEqual((rollout.n, rollout.temperature, config.data.max_response_length), (16, 0.8, 1024))
        self.assertEqual((actor.ppo_mini_batch_size, actor.optim.lr, config.data.train_batch_size), (32, 2e-6, 64))
        self.assertEqual(config.algorithm.adv_estimator, "grpo")
        groups = config.algorithm.filter_groups
        self.assertEqual((groups.enable, groups.metric, groups.max_num_gen_batches), (True, "acc", 7))
        self.assertEqual((config.reward.custom_reward_function.path, config.reward.custom_reward_function.name), ("mine.py", "score"))

    def test_losses_and_what_is_lost(self):
        config, script = self.composed(
            "objective.kl={in: loss, coefficient: 0.01, estimator: k3}", "objective.loss.clip_high=0.28", "schedule.order=completion"
        )
        actor = config.actor_rollout_ref.actor
        self.assertEqual((actor.use_kl_loss, actor.kl_loss_coef, actor.clip_ratio_high), (True, 0.01, 0.28))
        self.assertIn("# No counterpart in verl:\n", script)
        self.assertIn("#   schedule.order: completion", script)

    def test_an_overlong_punishment(self):
        config, _ = self.composed("+reward={kind: soft_overlong, form: verl, max_length: 1024, buffer: 256, penalty_factor: 1}")
        buffer = config.reward.reward_kwargs.overlong_buffer_cfg
        self.assertEqual((buffer.enable, buffer.len, buffer.penalty_factor), (True, 256, 1.0))


if __name__ == "__main__":
    unittest.main()
