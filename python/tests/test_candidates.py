"""The likeliest tokens of a network, and log-probabilities of candidates with their gradient, through the calls of the wire."""

# First: without PyTorch it reports that and skips the tests.
from support import OPTIMIZER, Case, call, golden_folder, open_settings, random_columns

import torch
from tamis.learner.learner import Learner
from tamis.learner.protocol import RequestError

SHAPE = ((9, (12, 1, 30)), (3, (5,)))
# A step of rate 0 changes nothing.
NOTES_GRADIENTS = {**OPTIMIZER, "beta1": 0.0, "weight_decay": 0.0, "max_grad_norm": None}
VOCAB = 96


class Candidates(Case):
    def setUp(self):
        self.learner = Learner()
        self.addCleanup(self.learner.close)
        self.wave = random_columns(VOCAB, 11, SHAPE)
        self.num_tokens = self.wave["completion_token"].numel()

    def open(self, temperature=0.8, **more):
        call(self.learner, "open", open_settings(golden_folder("llama"), temperature=temperature, optimizer=NOTES_GRADIENTS, **more))

    def hold(self, candidates, derivatives):
        """The columns of a held pass, and the gradients for these derivatives."""
        given = dict(self.wave) | ({} if candidates is None else {"candidate_token": candidates})
        found = call(self.learner, "forward_hold", {"network": "policy"}, given)[1]
        call(self.learner, "backward", {}, derivatives)
        weights = self.learner._policy.network.weights
        gradients = {name: weights.gradient(name).cpu() for name in weights.masters}
        # The next pass begins with none.
        call(self.learner, "optim_step", {"network": "policy", "learning_rate": 0.0})
        return found, gradients

    def test_the_likeliest_tokens_are_consistent(self):
        self.open()
        plain = call(self.learner, "forward", {"network": "policy"}, dict(self.wave))[1]
        top = call(self.learner, "forward", {"network": "policy", "top": VOCAB}, dict(self.wave))[1]
        self.assertEqual((top["top_token"].dtype, top["top_token"].numel()), (torch.int32, self.num_tokens * VOCAB))
        ids, logprobs = (top[name].reshape(-1, VOCAB) for name in ("top_token", "top_logprob"))
        self.assertTrue(torch.equal(ids.sort(1).values, torch.arange(VOCAB, dtype=torch.int32).expand_as(ids)))
        self.assertTrue((logprobs.diff(dim=1) <= 0).all())
        self.assert_close(logprobs.exp().sum(1), torch.ones(self.num_tokens), 1e-5, "probabilities")
        at = ids == self.wave["completion_token"][:, None]
        self.assert_close(logprobs[at], plain["logprob"], 1e-5, "the tokens")
        few = call(self.learner, "forward", {"network": "policy", "top": 3}, dict(self.wave))[1]
        self.assertTrue(torch.equal(few["top_token"].reshape(-1, 3), ids[:, :3]))
        with self.assertRaises(RequestError):
            call(self.learner, "forward", {"network": "policy", "top": VOCAB + 1}, dict(self.wave))

    def test_candidates_are_tokens_at_their_places(self):
        self.open()
        top = call(self.learner, "forward", {"network": "policy", "top": VOCAB}, dict(self.wave))[1]
        ids, logprobs = (top[name].reshape(-1, VOCAB) for name in ("top_token", "top_logprob"))
        generator = torch.Generator().manual_seed(3)
        candidates = torch.randint(VOCAB, (self.num_tokens, 2), generator=generator, dtype=torch.int32)
        zeros = {"logprob": torch.zeros(self.num_tokens)}
        found, _ = self.hold(candidates.flatten(), zeros)
        for place in range(2):
            expected = logprobs[ids == candidates[:, place, None]]
            self.assert_close(found["candidate"].reshape(-1, 2)[:, place], expected, 1e-5, f"candidate {place}")

    def test_a_candidate_that_is_the_token_has_its_gradient(self):
        self.open()
        generator = torch.Generator().manual_seed(4)
        derivative = torch.randn(self.num_tokens, generator=generator)
        _, expected = self.hold(None, {"logprob": derivative})
        zeros = torch.zeros(self.num_tokens)
        _, found = self.hold(self.wave["completion_token"], {"logprob": zeros, "candidate": derivative})
        for name, gradient in expected.items():
            self.assertTrue(gradient.any(), name)
            self.assert_close(found[name], gradient, 1e-5, name)

    def test_what_does_not_fit_is_refused(self):
        self.open(critic={"folder": None, "optimizer": NOTES_GRADIENTS})
        short = self.wave["completion_token"][1:]
        for what, network, column in [("too few", "policy", short), ("a token of no vocabulary", "policy", short.new_full((self.num_tokens,), VOCAB))]:
            with self.subTest(what), self.assertRaises(RequestError):
                call(self.learner, "forward_hold", {"network": network}, dict(self.wave) | {"candidate_token": column})
        given = dict(self.wave) | {"candidate_token": self.wave["completion_token"]}
        call(self.learner, "forward_hold", {"network": "policy"}, given)
        with self.assertRaises(RequestError):
            call(self.learner, "backward", {}, {"logprob": torch.zeros(self.num_tokens), "candidate": torch.zeros(3)})
