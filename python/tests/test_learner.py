"""The calls: what each does to weights, moments, gradients and held passes."""

import math
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import ARCHITECTURES, OPTIMIZER, Case, call, columns, golden_folder, open_settings, opened, random_columns

import torch
from tamis.learner.learner import Learner
from tamis.learner.protocol import Refused, RequestError, Settings, StateError

WAVE = random_columns(50)
NUM_TOKENS = WAVE["completion_token"].numel()


def forward(learner, network="policy", **more):
    return call(learner, "forward", {"network": network, **more}, WAVE)[1]


def hold(learner, network="policy"):
    return call(learner, "forward_hold", {"network": network}, WAVE)[1]


def back(learner, **given):
    call(learner, "backward", {}, given)


def step(learner, network="policy", learning_rate=1e-2):
    answer, given = call(learner, "optim_step", {"network": network, "learning_rate": learning_rate})
    return answer, given["grad_norm"].item()


def train(learner, network="policy"):
    found = hold(learner, network)
    name = "value" if network == "critic" else "logprob"
    back(learner, **{name: torch.cos(found[name] * 5)})
    return step(learner, network)


def state(learner, network="policy"):
    own = learner._named(network)
    weights = {name: master.clone() for name, master in own.network.weights.masters.items()}
    first = {name: moment.clone() for name, moment in own.optimizer.first.items()}
    return weights, first, own.optimizer.num_steps


def critic(learner):
    call(learner, "copy", {"to": "critic"})
    return learner._critic.network


class States(Case):
    def assert_same_state(self, one, other):
        self.assertEqual(one[2], other[2])
        for tensors, others in zip(one[:2], other[:2]):
            for name in tensors:
                self.assert_same(tensors[name], others[name], name)

    def assert_moved(self, one, other):
        self.assertTrue(all(not torch.equal(one[0][name], other[0][name]) for name in one[0]))


class Calls(States):
    def test_forward_and_forward_hold_give_the_same_bits(self):
        for architecture in ARCHITECTURES:
            for dtype in ("f32", "bf16"):
                learner = opened(golden_folder(architecture), options={"dtype": dtype})
                plain, held, again = forward(learner), hold(learner), forward(learner)
                for name in ("logprob", "entropy"):
                    self.assert_same(plain[name], held[name])
                    self.assert_same(plain[name], again[name])

    def test_gradients_add_up_over_waves_until_the_step(self):
        learner = opened(golden_folder("qwen3"))
        derivative = torch.linspace(-1, 1, NUM_TOKENS)
        norms = []
        for repetitions in (1, 2):
            for _ in range(repetitions):
                hold(learner)
                back(learner, logprob=derivative)
            norms.append(call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"])
        self.assertEqual(norms[0].dtype, torch.float64)
        self.assertAlmostEqual((norms[1] / norms[0]).item(), 2.0, places=5)
        self.assertEqual(call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item(), 0.0)

    def test_a_held_pass_is_used_once(self):
        learner = opened(golden_folder("qwen2"))
        derivative = torch.ones(NUM_TOKENS)
        self.assert_refused(StateError, "no pass is held", back, learner, logprob=derivative)
        hold(learner)
        self.assertTrue(learner.is_holding)
        back(learner, logprob=derivative)
        self.assert_refused(StateError, "no pass is held", back, learner, logprob=derivative)
        hold(learner)
        call(learner, "backward", {"discard": True})
        self.assertFalse(learner.is_holding)
        call(learner, "backward", {"discard": True})
        self.assert_refused(StateError, "no pass is held", back, learner, logprob=derivative)
        # Another one replaces it, and the discarded one left nothing.
        call(learner, "grad_norm", {"network": "policy"})
        hold(learner)
        hold(learner)
        back(learner, logprob=derivative)
        norm = call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item()
        hold(learner)
        back(learner, logprob=derivative)
        self.assertEqual(call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item(), norm)

    def test_derivatives_that_do_not_fit(self):
        learner = opened(golden_folder("qwen2"))
        hold(learner)
        self.assert_refused(RequestError, "`logprob` is missing", back, learner, entropy=torch.ones(NUM_TOKENS))
        self.assert_refused(RequestError, "has 3 numbers", back, learner, logprob=torch.ones(3))
        self.assert_refused(
            RequestError,
            "no column `value`",
            back,
            learner,
            logprob=torch.ones(NUM_TOKENS),
            value=torch.ones(NUM_TOKENS),
        )
        self.assert_refused(RequestError, "must be F32", back, learner, logprob=torch.ones(NUM_TOKENS).double())
        self.assertTrue(learner.is_holding)

    def test_no_step_while_its_pass_is_held(self):
        learner = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER})
        critic(learner)
        hold(learner)
        self.assert_refused(StateError, "is held", step, learner)
        step(learner, "critic")
        back(learner, logprob=torch.ones(NUM_TOKENS))
        step(learner)

    def test_sharpness_and_temperature(self):
        learner = opened(golden_folder("llama"), temperature=0.5)
        sharp = opened(golden_folder("llama"), temperature=1.0)
        for name in ("logprob", "entropy"):
            self.assert_close(forward(learner)[name], forward(sharp, sharpness=2.0)[name], 1e-6)
            self.assert_close(forward(learner, sharpness=0.5)[name], forward(sharp)[name], 1e-6)
        self.assertFalse(torch.equal(forward(learner)["logprob"], forward(sharp)["logprob"]))

    def test_a_gradient_that_is_not_finite_is_skipped(self):
        learner = opened(golden_folder("qwen3"))
        train(learner)
        before = state(learner)
        derivative = torch.ones(NUM_TOKENS)
        derivative[7] = math.inf
        hold(learner)
        back(learner, logprob=derivative)
        answer, norm = step(learner)
        self.assertEqual(answer, {"skipped": True, "num_steps": 1})
        self.assertFalse(math.isfinite(norm))
        self.assert_same_state(state(learner), before)
        self.assertEqual(call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item(), 0.0)

    def test_reset_optimizer(self):
        learner = opened(golden_folder("qwen3"))
        train(learner)
        weights = state(learner)[0]
        call(learner, "reset_optimizer", {"network": "policy"})
        after = state(learner)
        self.assertEqual(after[2], 0)
        self.assertFalse(any(moment.any() for moment in after[1].values()))
        for name in weights:
            self.assert_same(after[0][name], weights[name])


class KeepAndRestore(States):
    def test_parts_of_a_step_are_given_up(self):
        for dtype in ("f32", "bf16"):
            learner = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER}, options={"dtype": dtype})
            critic(learner)
            train(learner), train(learner, "critic")
            before, before_critic, scores = state(learner), state(learner, "critic"), forward(learner)
            call(learner, "keep")
            train(learner), train(learner, "critic")
            # The first one counts.
            call(learner, "keep")
            train(learner)
            self.assert_moved(state(learner), before)
            self.assertFalse(torch.equal(forward(learner)["logprob"], scores["logprob"]))
            self.assert_same(forward(learner, "before")["logprob"], scores["logprob"])
            hold(learner)
            back(learner, logprob=torch.ones(NUM_TOKENS))
            call(learner, "restore")
            self.assert_same_state(state(learner), before)
            self.assert_same_state(state(learner, "critic"), before_critic)
            self.assert_same(forward(learner)["logprob"], scores["logprob"])
            self.assertEqual(call(learner, "grad_norm", {"network": "policy"})[1]["grad_norm"].item(), 0.0)
            # Nothing is set aside any more.
            train(learner)
            after = state(learner)
            call(learner, "restore")
            self.assert_same_state(state(learner), after)

    def test_publish_frees_what_was_set_aside(self):
        learner = opened(golden_folder("qwen2"))
        call(learner, "keep")
        train(learner)
        after = state(learner)
        call(learner, "publish", {"version": 1})
        self.assert_same(forward(learner, "before")["logprob"], forward(learner)["logprob"])
        call(learner, "restore")
        self.assert_same_state(state(learner), after)

    def test_a_pass_under_the_weights_before_leaves_a_held_one(self):
        for recompute in (False, True):
            found = []
            for between in (False, True):
                learner = opened(golden_folder("qwen3"), recompute_activations=recompute)
                call(learner, "keep")
                train(learner)
                hold(learner)
                if between:
                    old = forward(learner, "before")
                    self.assertFalse(torch.equal(old["logprob"], forward(learner)["logprob"]))
                back(learner, logprob=torch.linspace(-1, 1, NUM_TOKENS))
                train_state = step(learner), state(learner)
                found.append(train_state)
            self.assertEqual(found[0][0], found[1][0])
            self.assert_same_state(found[0][1], found[1][1])


class Copies(States):
    def test_reference(self):
        for offload in (False, True):
            learner = opened(golden_folder("qwen2"), options={"offload_reference": offload})
            self.assert_refused(StateError, "no reference", forward, learner, "reference")
            train(learner)
            scores = forward(learner)
            call(learner, "copy", {"to": "reference"})
            self.assert_same(forward(learner, "reference")["logprob"], scores["logprob"])
            train(learner)
            self.assert_same(forward(learner, "reference")["logprob"], scores["logprob"])
            self.assertFalse(torch.equal(forward(learner)["logprob"], scores["logprob"]))

    def test_reference_from_a_folder(self):
        learner = opened(golden_folder("qwen2"), reference=str(golden_folder("llama")))
        other = opened(golden_folder("llama"))
        self.assert_same(forward(learner, "reference")["entropy"], forward(other)["entropy"])
        call(learner, "load", {"folder": str(golden_folder("qwen3")), "content": "reference"})
        other = opened(golden_folder("qwen3"))
        self.assert_same(forward(learner, "reference")["entropy"], forward(other)["entropy"])
        self.assert_refused(Refused, "no adapter", forward, learner, "base")

    def test_teachers(self):
        folders = [str(golden_folder(name)) for name in ("llama", "qwen3")]
        for offload in (False, True):
            options = {"offload_reference": offload}
            learner = opened(golden_folder("qwen2"), teachers=folders, options=options)
            for number, folder in enumerate(folders):
                other = forward(opened(folder))
                found = forward(learner, f"teacher/{number}")
                self.assert_same(found["logprob"], other["logprob"])
                train(learner)
                self.assert_same(forward(learner, f"teacher/{number}")["entropy"], other["entropy"])
            self.assert_refused(RequestError, "network", forward, learner, "teacher/2")

    def test_critic(self):
        for recompute in (False, True):
            learner = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER}, recompute_activations=recompute)
            train(learner)
            own = critic(learner)
            self.assertFalse(forward(learner, "critic")["value"].any())
            policy = learner._policy.network.weights.masters
            self.assertEqual(set(own.weights.masters), set(policy) | {"score.weight", "score.bias"})
            for name, master in policy.items():
                self.assert_same(own.weights.masters[name], master, name)
                self.assertNotEqual(own.weights.masters[name].data_ptr(), master.data_ptr())
            before = state(learner)
            for _ in range(3):
                answer, _ = train(learner, "critic")
            self.assertEqual(answer["num_steps"], 3)
            self.assert_same_state(state(learner), before)
            self.assertTrue(forward(learner, "critic")["value"].any())
            # Its optimizer is new, and its head zero, if it begins again.
            critic(learner)
            self.assertEqual(state(learner, "critic")[2], 0)
            self.assertFalse(forward(learner, "critic")["value"].any())

    def test_values_and_their_gradients(self):
        for dtype, tolerance in (("f32", 1e-5), ("bf16", 5e-2)):
            learner = opened(golden_folder("qwen3"), critic={"optimizer": OPTIMIZER}, options={"dtype": dtype})
            own = critic(learner)
            with torch.no_grad():
                own.head.weight.copy_(torch.linspace(-1, 1, 48)[None])
                own.head.bias.fill_(0.25)
            found = hold(learner, "critic")["value"]
            derivative = torch.linspace(-1, 2, NUM_TOKENS)
            back(learner, value=derivative)
            import transformers

            module = transformers.AutoModel.from_pretrained(golden_folder("qwen3"), dtype=torch.float64).eval()
            weight = torch.linspace(-1, 1, 48).double().requires_grad_()
            values = []
            offsets = WAVE["completion_offset"].tolist()
            for s, prompt in enumerate(WAVE["prompt_of"].tolist()):
                cut = slice(*WAVE["prompt_offset"][prompt : prompt + 2].tolist())
                tokens = torch.cat([WAVE["prompt_token"][cut], WAVE["completion_token"][offsets[s] : offsets[s + 1]]])
                hidden = module(tokens[None].long()).last_hidden_state[0]
                values.append(hidden[cut.stop - cut.start - 1 : -1] @ weight + 0.25)
            values = torch.cat(values)
            self.assert_close(found, values, tolerance)
            values.backward(derivative.double())
            self.assert_close(own.weights.gradient("score.bias"), [derivative.sum()], 1e-5)
            self.assert_close(own.weights.gradient("score.weight"), weight.grad[None], tolerance)
            for name, parameter in module.named_parameters():
                self.assert_close(own.weights.gradient(f"model.{name}"), parameter.grad, 4 * tolerance, name)
            self.assert_refused(RequestError, "no sharpness", forward, learner, "critic", sharpness=2.0)


class Check(States):
    def test_names_what_is_broken(self):
        learner = opened(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER})
        own = critic(learner)
        self.assertEqual(call(learner, "check")[0], {"not_finite": None})
        places = [
            ("critic_moments", learner._critic.optimizer.second, "score.bias"),
            ("critic", own.weights.masters, "model.norm.weight"),
            ("policy_moments", learner._policy.optimizer.first, "model.layers.1.mlp.up_proj.weight"),
            ("policy", learner._policy.network.weights.masters, "model.layers.0.self_attn.q_proj.bias"),
        ]
        # Each is found before those that were broken first.
        for what, tensors, name in places:
            tensors[name].view(-1)[-1] = math.nan
            self.assertEqual(call(learner, "check")[0], {"not_finite": {"what": what, "tensor": name}})


class Opening(Case):
    def test_sizes(self):
        learner = Learner()
        answer, _ = call(learner, "open", open_settings(golden_folder("qwen2"), critic={"optimizer": OPTIMIZER}))
        self.assertEqual(
            answer["policy"], {"num_parameters": 51120, "num_trained": 51120, "vocab_size": 96, "max_positions": 256}
        )
        self.assertIsNone(answer["critic"])
        answer, _ = call(learner, "copy", {"to": "critic"})
        self.assertEqual(answer["critic"]["num_parameters"], 51120 + 49)

    def test_settings_that_are_wrong(self):
        good = open_settings(golden_folder("qwen2"))

        def refused(error, pattern, **change):
            learner = Learner()
            self.assert_refused(error, pattern, learner.open, Settings({**good, **change}), {})
            self.assertIsNone(learner._policy)

        refused(RequestError, "unknown key `polcy`", polcy="x")
        refused(RequestError, "not absolute", policy="here")
        refused(Refused, "failed to read", policy="/nowhere")
        refused(RequestError, "`temperature` of the request must be a number above 0.0, and is 0", temperature=0)
        refused(RequestError, "`beta1`", optimizer={**OPTIMIZER, "beta1": 1.0})
        refused(RequestError, "unknown key `lr`", optimizer={**OPTIMIZER, "lr": 1.0})
        refused(RequestError, "`critic` has no `optimizer`", critic={})
        refused(RequestError, "`options` has the unknown key `thread`", options={"thread": 1})
        refused(RequestError, "`dtype` of `options` must be one of auto, f32, bf16", options={"dtype": "f16"})
        refused(Refused, "no device cuda", options={"device": "cuda"}) if not torch.cuda.is_available() else None
        refused(RequestError, "must be auto, cpu or cuda", options={"device": "tpu9"})
        self.assertEqual(good["options"], {"device": "cpu", "dtype": "f32", "threads": 1})

    def test_opening_again_forgets(self):
        learner = opened(golden_folder("qwen2"), reference=str(golden_folder("llama")))
        hold(learner)
        call(learner, "open", open_settings(golden_folder("qwen3")))
        self.assertFalse(learner.is_holding)
        self.assert_refused(StateError, "no reference", forward, learner, "reference")
        self.assert_refused(
            RequestError, "rank", call, learner, "forward", {"network": "policy"}, columns([[1]], [(0, [2])], ranks=[1])
        )


if __name__ == "__main__":
    unittest.main()
