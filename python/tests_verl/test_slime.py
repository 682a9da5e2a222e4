"""tamis.slime.keep, with a stand-in for slime's result if slime is not installed."""

import enum
import math
import sys
import types
import unittest
from dataclasses import dataclass

try:
    import slime.rollout.filter_hub.base_types  # noqa: F401
except ImportError:

    @dataclass
    class DynamicFilterOutput:
        keep: bool
        reason: str | None = None
        keep_when_insufficient: bool = False

    name = "slime"
    sys.modules[name] = types.ModuleType(name)
    for part in ("rollout", "filter_hub", "base_types"):
        name = f"{name}.{part}"
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].DynamicFilterOutput = DynamicFilterOutput

import tamis.slime  # noqa: E402

Status = enum.Enum(
    "Status", {"COMPLETED": "completed", "TRUNCATED": "truncated", "ABORTED": "aborted", "FAILED": "failed"}
)


@dataclass
class Sample:
    reward: object = None
    status: Status = Status.COMPLETED
    remove_sample: bool = False


class KeepTests(unittest.TestCase):
    def judge(self, *samples, reward_key=None):
        args = types.SimpleNamespace(reward_key=reward_key)
        output = tamis.slime.keep(
            args, [item if isinstance(item, (Sample, list)) else Sample(item) for item in samples]
        )
        self.assertIs(type(output.keep), bool)
        return output.keep, output.reason

    def test_differing_and_uniform(self):
        self.assertEqual(self.judge(0.0, 1.0, 0), (True, None))
        self.assertEqual(self.judge(1, 1, 1), (False, "all_correct"))
        self.assertEqual(self.judge(0, 0, 0), (False, "all_wrong"))
        for n in range(2, 20):
            self.assertEqual(self.judge(*[0.1] * n), (False, "uniform"))
        # Differences that a threshold of 1e-6 does not see.
        self.assertEqual(self.judge(0.1, 0.1000001), (True, None))

    def test_unscored(self):
        self.assertEqual(self.judge(None, 0, 1), (True, None))
        self.assertEqual(self.judge(None, 1, 1), (False, "all_correct"))
        self.assertEqual(self.judge(None, math.nan, 1), (False, "unscored"))
        self.assertEqual(self.judge(Sample(1, remove_sample=True), 0, 0), (False, "all_wrong"))

    def test_failed(self):
        for status in (Status.FAILED, Status.ABORTED):
            self.assertEqual(self.judge(Sample(1, status), 0, 0), (False, "failed"))
        self.assertEqual(self.judge(Sample(1, Status.TRUNCATED), 0), (True, None))

    def test_parts_of_a_member(self):
        self.assertEqual(self.judge([Sample(0), Sample(1)], [Sample(1)], []), (False, "all_correct"))
        self.assertEqual(self.judge([Sample(1), Sample(0)], [Sample(1)]), (True, None))

    def test_rewards_by_name(self):
        self.assertEqual(
            self.judge({"acc": 1, "score": 3}, {"acc": 1, "score": 2}, reward_key="acc"), (False, "all_correct")
        )
        self.assertEqual(self.judge({"acc": 1}, {"acc": 0}, {}, None, reward_key="acc"), (True, None))


if __name__ == "__main__":
    unittest.main()
