"""Generation: random numbers, draws, and samples over the cache against whole sequences."""

import contextlib
import json
import math
import pathlib
import tempfile
import unittest.mock

# First: without PyTorch it reports that and skips the tests.
from support import (
    ARCHITECTURES, DEVICE, Case, call, columns, golden_folder, opened, randomise, save_tiny, tiny_config,
)  # fmt: skip

import torch
import transformers
from tamis.learner import generate, one_query, samples
from tamis.learner.drawing import Drawing, Drawings, draw
from tamis.learner.protocol import Refused, RequestError
from tamis.learner.step_graphs import StepGraphs
from tamis.learner.random_keys import uniform

PLAIN = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 12,
    "end_tokens": [],
}  # fmt: skip
# Models whose layers have windows, experts, or scaled logits.
KINDS = {
    "MistralConfig": {"sliding_window": 4},
    "Gemma3TextConfig": {"sliding_window": 4, "query_pre_attn_scalar": 6},
    "Qwen2Config": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "Qwen3MoeConfig": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Phi3Config": {}, "GraniteConfig": {"logits_scaling": 4.0},
}  # fmt: skip
PROMPTS = [([5, 6, 7], 3), ([9, 8], 2), ([3], 4), ([4, 4, 4, 4, 4, 4, 11], 1)]


def signed(key):
    return key - (1 << 64) if key >= 1 << 63 else key


def asked(groups, drawings=(PLAIN,), drawn_by=None, abort=(), seconds=100.0):
    """A call's settings and columns; `groups` has prompts with their samples' numbers, which are their keys, too."""
    samples = [sample for _, group in groups for sample in group]

    def column(values, dtype):
        return torch.tensor(list(values), dtype=dtype)

    offsets = torch.tensor([0, *(len(prompt) for prompt, _ in groups)]).cumsum(0)
    return {"seconds": seconds, "drawing": list(drawings) if groups else []}, {
        "prompt_token": column((token for prompt, _ in groups for token in prompt), torch.int32),
        "prompt_offset": offsets,
        "prompt_drawing": column(drawn_by or [0] * len(groups), torch.int32),
        "prompt_of": column((place for place, (_, group) in enumerate(groups) for _ in group), torch.int32),
        "sample": column(samples, torch.int64),
        "key": column((signed((sample + 1) * 0x9E3779B97F4A7C15 % (1 << 64)) for sample in samples), torch.int64),
        "abort": column(abort, torch.int64),
    }


def take(answer, found):
    """Adds an answer's columns to the samples that it names."""
    begins = answer["token_offset"].tolist()
    for place, sample in enumerate(answer["sample"].tolist()):
        part = slice(begins[place], begins[place + 1])
        one = found.setdefault(sample, {"token": [], "logprob": [], "entropy": [], "end": 0})
        for name in ("token", "logprob", "entropy"):
            one[name] += answer[name][part].tolist()
        one["end"] = int(answer["end"][place])


def to_the_end(learner, groups, **more):
    """Every sample of the groups by its number, and how many calls it took."""
    found, num_calls = {}, 0
    settings, answer = call(learner, "generate", *asked(groups, **more))
    while True:
        num_calls += 1
        take(answer, found)
        if not settings["num_open"]:
            return found, num_calls
        settings, answer = call(learner, "generate", *asked([]))


def numbered(prompts=PROMPTS):
    groups, number = [], 0
    for prompt, size in prompts:
        groups.append((prompt, list(range(number, number + size))))
        number += size
    return groups


def drawn_plainly(logits, drawing, number, seen):
    """One draw, token by token, as the native engine's page of definitions has it."""
    scale = drawing.temperature or 1.0
    logits = [x / drawing.repetition_penalty if x > 0 else x * drawing.repetition_penalty for x in logits] if drawing.repetition_penalty != 1.0 and seen is None else [
        (x / drawing.repetition_penalty if x > 0 else x * drawing.repetition_penalty) if seen and token in seen else x
        for token, x in enumerate(logits)
    ]
    if drawing.temperature == 0.0:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    top = max(logits)
    weights = [math.exp((x - top) / scale) for x in logits]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    kept, least = order, drawing.min_p * max(weights)
    if 0 < drawing.top_k < len(weights):
        of_k = weights[order[drawing.top_k - 1]]
        kept, least = [token for token in order if weights[token] >= of_k], max(least, of_k)
    if drawing.top_p < 1.0:
        total, reached, until = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            until.append(token)
            reached += weights[token]
            if reached >= drawing.top_p * total:
                break
        kept = until
    kept = sorted(token for token in kept if weights[token] >= least)
    target, sum_so_far = number * sum(weights[token] for token in kept), 0.0
    for token in kept:
        sum_so_far += weights[token]
        if sum_so_far > target:
            return token
    return kept[-1]


def log_probabilities(module, tokens, cache=None):
    """Those of the next token after these, f64 [V], by transformers' own cache, and the cache."""
    with torch.no_grad():
        output = module(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
    return output.logits[0, -1].double().log_softmax(0), output.past_key_values


def row_by_row(query, prompt_key, prompt_value, slots, prompt_lengths, key, value, lengths, scale, window=None, cap=None):
    """What a kernel of one query computes, one row after another, in f64: [n, H, D]."""
    found = []
    for row, (slot, prompt_length, length) in enumerate(zip(slots.tolist(), prompt_lengths.tolist(), lengths.tolist(), strict=True)):
        keys, values = (
            torch.cat([prompt[slot, :, :prompt_length], own[row, :, : length + 1]], 1).double()
            for prompt, own in ((prompt_key, key), (prompt_value, value))
        )
        if window is not None:
            keys, values = keys[:, -window:], values[:, -window:]
        grouped = query[row].double().unflatten(0, (keys.shape[0], -1))
        scores = grouped @ keys.transpose(1, 2) * scale
        scores = scores if cap is None else (scores / cap).tanh() * cap
        found.append((scores.softmax(2) @ values).flatten(0, 1).to(query.dtype))
    return torch.stack(found)


class OneQuery(Case):
    """Attention of one token of each row to a shared prompt and to its own tokens."""

    def drawn(self, generator, width=16, num_kept=2, num_grouped=3, lengths=(0, 4, 12, 5, 20), slots=(0, 0, 2, 1, 2), prompts=(17, 1, 9)):
        """Arguments of `row_by_row`, with numbers behind each row's end that must not be seen."""
        def states(rows, columns):
            return [torch.randn(rows, num_kept, columns, width, generator=generator) * 3 for _ in range(2)]

        query = torch.randn(len(lengths), num_kept * num_grouped, width, generator=generator) * 3
        prompt_lengths = torch.tensor([prompts[slot] for slot in slots])
        made = (
            query, *states(max(slots) + 2, max(prompts) + 5), torch.tensor(slots), prompt_lengths, *states(len(lengths), max(lengths) + 3),
            torch.tensor(lengths),
        )  # fmt: skip
        return [one.to(DEVICE) for one in made]

    def test_joined_parts_are_the_whole(self):
        generator = torch.Generator().manual_seed(1)
        for window in (None, 1, 3, 7, 100):
            for cap in (None, 5.0):
                query, prompt_key, prompt_value, slots, prompt_lengths, key, value, lengths = drawn = self.drawn(generator)
                prompts = unittest.mock.Mock(keys={3: prompt_key}, values={3: prompt_value}, num_columns=prompt_key.shape[2])
                seen = one_query.Seen(lengths, prompt_lengths, one_query.Groups(slots.tolist(), torch.device(DEVICE)), key.shape[2], prompts)
                found = one_query.attend_rows(query, key, value, seen, 3, 0.25, window, cap)
                self.assert_close(found, row_by_row(*drawn, 0.25, window, cap), 1e-5, f"window {window}, cap {cap}")


class RandomKeys(Case):
    def test_numbers_are_those_of_the_core(self):
        table = json.loads(pathlib.Path(__file__).with_name("random_keys.json").read_text())
        keys = torch.tensor([signed(int(row["key"], 16)) for row in table]).to(DEVICE)
        counters = torch.tensor([row["counter"] for row in table]).to(DEVICE)
        found = uniform(keys, counters)
        self.assertEqual(found.tolist(), [row["uniform"] for row in table])
        self.assertEqual(uniform(keys.reshape(2, -1), counters.reshape(2, -1)).flatten().tolist(), found.tolist())


class Draws(Case):
    def test_logits_that_are_no_numbers_give_no_log_probability(self):
        # The caller that requested the sample refuses such a token.
        logits = torch.zeros(3, 100, device=DEVICE)
        logits[0] = float("nan")
        logits[1, 7] = float("nan")
        logits[2, 7] = float("inf")
        for case in ((1.0, 0, 1.0, 0.0, 1.0), (0.0, 0, 1.0, 0.0, 1.0), (1.0, 5, 0.9, 0.1, 1.0)):
            rows = [Drawing(*case, 9, frozenset())] * 3
            tokens, logprobs, _ = draw(logits, Drawings(rows, DEVICE), torch.full((3,), 0.5, dtype=torch.float64, device=DEVICE))
            self.assertTrue(((tokens >= 0) & (tokens < 100)).all(), tokens)
            self.assertFalse(logprobs.isfinite().any(), logprobs)

    def test_cuts_are_those_of_the_native_engine(self):
        generator = torch.Generator().manual_seed(3)
        logits = torch.randn(24, 150, generator=generator) * 2
        # Equals at every edge.
        logits[12:] = logits[12:].round()
        logits = logits.to(DEVICE)
        cases = [
            Drawing(*case, 9, frozenset())
            for case in [
                (1.0, 0, 1.0, 0.0, 1.0), (0.7, 0, 1.0, 0.0, 1.0), (1.0, 5, 1.0, 0.0, 1.0), (1.0, 0, 0.8, 0.0, 1.0),
                (1.3, 0, 1.0, 0.1, 1.0), (0.9, 20, 0.7, 0.05, 1.4), (0.0, 0, 1.0, 0.0, 1.0), (0.0, 0, 1.0, 0.0, 3.0),
                (1.0, 500, 0.999, 0.0, 1.0),
            ]
        ]  # fmt: skip
        seen = (torch.rand(24, 150, generator=generator) < 0.3).to(DEVICE)
        for round in range(3):
            uniforms = torch.rand(24, dtype=torch.float64, generator=generator).to(DEVICE)
            rows = [cases[(row + round) % len(cases)] for row in range(24)]
            tokens, logprobs, entropies = draw(logits, Drawings(rows, DEVICE), uniforms, seen)
            for row, drawing in enumerate(rows):
                known = set(seen[row].nonzero()[:, 0].tolist())
                expected = drawn_plainly(logits[row].double().tolist(), drawing, float(uniforms[row]), known)
                self.assertEqual(int(tokens[row]), expected, f"row {row}, {drawing}")
                whole = torch.log_softmax(logits[row].double() / (drawing.temperature or 1.0), 0)
                self.assertAlmostEqual(float(logprobs[row]), float(whole[expected]), delta=1e-5)
                self.assertAlmostEqual(float(entropies[row]), float(-(whole.exp() * whole).sum()), delta=1e-5)
            # A row's draw does not depend on the rows beside it.
            for part in range(0, 24, 7):
                beside = slice(part, part + 7)
                alone = draw(logits[beside], Drawings(rows, DEVICE).part(part, part + 7), uniforms[beside], seen[beside])
                self.assert_same(alone[0], tokens[beside])

    def test_frequencies_are_the_probabilities(self):
        probabilities = torch.tensor([0.5, 0.25, 0.125, 0.0, 0.125]).to(DEVICE)
        logits = probabilities.log().clamp_min(-80).expand(20_000, -1)
        uniforms = uniform(torch.full((20_000,), 77, device=DEVICE), torch.arange(20_000, device=DEVICE))
        tokens, _, _ = draw(logits, Drawings([Drawing(1.0, 0, 1.0, 0.0, 1.0, 1, frozenset())] * 20_000, DEVICE), uniforms)
        found = torch.bincount(tokens, minlength=5) / 20_000
        self.assertLess(float((found - probabilities).abs().max()), 0.012)

    def test_the_last_token_can_be_drawn_and_one_without_probability_cannot(self):
        for width in (1, 63, 64, 65, 200):
            logits = torch.full((2, width), -200.0, device=DEVICE)
            logits[:, -1] = 0.0
            drawing = [Drawing(1.0, 0, 1.0, 0.0, 1.0, 1, frozenset())] * 2
            tokens, _, _ = draw(logits, Drawings(drawing, DEVICE), torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64).to(DEVICE))
            self.assertEqual(tokens.tolist(), [width - 1] * 2)


class Samples(Case):
    def folder(self, config, **more):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        save_tiny(folder, config, **more)
        return folder

    def opened(self, folder, max_sequences=64, **more):
        return opened(folder, generation={"max_sequences": max_sequences}, **more)

    def num_held(self, generation):
        """Number of samples for which the held memory has room."""
        return generation._cache.rows.num_rows

    def draw_some(self, generation, num_tokens):
        """Samples until one sample has so many tokens, like a call that ends then."""
        with torch.no_grad(), generation._computing():
            generation._admit()
            while max(len(row.tokens) for row in generation._rows) < num_tokens:
                generation._step()

    def assert_of_the_policy(self, learner, found, groups, tolerance=1e-5):
        """The reported log-probabilities of the samples equal those of a pass over them."""
        sequences = [(place, found[sample]["token"]) for place, (_, group) in enumerate(groups) for sample in group]
        wave = columns([prompt for prompt, _ in groups], sequences)
        _, expected = call(learner, "forward", {"network": "before"}, wave)
        for name in ("logprob", "entropy"):
            told = [number for _, group in groups for sample in group for number in found[sample][name]]
            self.assert_close(told, expected[name], tolerance, name)

    def test_samples_that_begin_after_a_publication_begin_by_the_new_weights(self):
        learner = self.opened(golden_folder("qwen3"), 2)
        # The prompt is computed for the first two, and the others wait: it was computed by the old weights.
        prompt, group = [5, 6, 7], [0, 1, 2, 3]
        found = {}
        settings, answer = call(learner, "generate", *asked([(prompt, group)]))
        take(answer, found)
        self.assertEqual((sorted(found), settings["num_open"]), ([0, 1], 2))
        self.assertEqual({one["end"] for one in found.values()}, {2})
        self.assert_of_the_policy(learner, found, [(prompt, [0, 1])])
        wave = columns([prompt], [(0, found[0]["token"])])
        _, held = call(learner, "forward_hold", {"network": "policy"}, wave)
        call(learner, "backward", {}, {"logprob": torch.sin(held["logprob"])})
        call(learner, "optim_step", {"network": "policy", "learning_rate": 0.05})
        call(learner, "publish", {"version": 1})
        while settings["num_open"]:
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
        self.assert_of_the_policy(learner, found, [(prompt, [2, 3])])
        # The first two are of other weights, by far.
        with self.assertRaises(AssertionError):
            self.assert_of_the_policy(learner, found, [(prompt, [0, 1])], tolerance=1e-2)

    def test_log_probabilities_are_those_of_a_pass_over_the_sample(self):
        for architecture in ARCHITECTURES:
            learner = self.opened(golden_folder(architecture), 6)
            groups = numbered()
            found, num_calls = to_the_end(learner, groups)
            self.assertGreater(num_calls, 1, "samples take the places of those that have ended")
            self.assertEqual({len(one["token"]) for one in found.values()}, {12})
            self.assertEqual({one["end"] for one in found.values()}, {2})
            self.assert_of_the_policy(learner, found, groups)

    def test_samples_depend_on_keys_and_prompts_alone(self):
        learner = self.opened(golden_folder("qwen3"), 64)
        groups = numbered()
        whole, _ = to_the_end(learner, groups)
        few = self.opened(golden_folder("qwen3"), 2)
        for other in (to_the_end(few, groups)[0], to_the_end(few, groups[::-1])[0]):
            self.assertEqual({key: one["token"] for key, one in other.items()}, {key: one["token"] for key, one in whole.items()})
        alone = {}
        for prompt, group in groups:
            for sample in group:
                alone |= to_the_end(learner, [(prompt, [sample])])[0]
        self.assertEqual({key: one["token"] for key, one in alone.items()}, {key: one["token"] for key, one in whole.items()})
        self.assertGreater(len({tuple(one["token"]) for one in whole.values()}), 8, "members of a group differ")

    def test_a_call_of_no_time_begins_and_gives_up_alone(self):
        learner = self.opened(golden_folder("qwen2"), 3)
        groups = numbered()
        settings, answer = call(learner, "generate", *asked(groups, seconds=0.0))
        self.assertEqual((settings["num_open"], answer["sample"].numel()), (10, 0))
        settings, _ = call(learner, "generate", *asked([], abort=[0, 9, 77], seconds=0.0))
        self.assertEqual(settings["num_open"], 8)
        # Some tokens of some samples, then without those.
        found = {}
        generation = learner._generation
        self.draw_some(generation, 2)
        settings, answer = call(learner, "generate", *asked([], seconds=0.0))
        take(answer, found)
        self.assertEqual(len(found), 3)
        self.assertEqual(max(len(one["token"]) for one in found.values()), 2)
        gone = sorted(found)[:2]
        settings, _ = call(learner, "generate", *asked([], abort=gone, seconds=0.0))
        self.assertEqual(settings["num_open"], 6)
        for sample in gone:
            del found[sample]
        while settings["num_open"]:
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
        whole, _ = to_the_end(learner, groups)
        self.assertEqual(sorted(found), sorted({*range(10)} - {0, 9, *gone}))
        for sample, one in found.items():
            self.assertEqual(one["token"], whole[sample]["token"])
        self.assertEqual(self.num_held(generation), 0, "the memory is free")

    def test_ends(self):
        learner = self.opened(golden_folder("llama"))
        groups = numbered()
        whole, _ = to_the_end(learner, groups)
        end = whole[0]["token"][4]
        found, _ = to_the_end(learner, groups, drawings=[{**PLAIN, "end_tokens": [end]}])
        for sample, one in found.items():
            tokens = whole[sample]["token"]
            expected = tokens[: tokens.index(end) + 1] if end in tokens else tokens
            self.assertEqual((one["token"], one["end"]), (expected, 1 if end in tokens else 2))
        limit = learner._policy.network.max_positions
        prompt = [1 + place % 20 for place in range(limit - 3)]
        found, _ = to_the_end(learner, [(prompt, [1]), (prompt[:5], [2])])
        self.assertEqual([(len(one["token"]), one["end"]) for _, one in sorted(found.items())], [(3, 2), (12, 2)])
        settings, answer = call(learner, "generate", *asked([(prompt + [1, 2, 3], [4, 5]), ([1], [6])]))
        self.assertEqual([one["sample"] for one in settings["refused"]], [4, 5])
        self.assertIn("leaves no room", settings["refused"][0]["reason"])
        self.assertEqual(answer["sample"].tolist(), [6])

    def test_each_sample_is_drawn_its_own_way(self):
        learner = self.opened(golden_folder("qwen3"), 5, temperature=0.7)
        ways = [{**PLAIN, "temperature": 0.7}, {**PLAIN, "temperature": 0.0}, {**PLAIN, "top_k": 1, "repetition_penalty": 1.5}]
        groups = [([5, 6, 7], [0, 1]), ([5, 6, 7], [2]), ([5, 6, 7], [3]), ([9], [4, 5])]
        found, _ = to_the_end(learner, groups, drawings=ways, drawn_by=[0, 1, 2, 0])
        self.assert_of_the_policy(learner, {k: found[k] for k in (0, 1, 4, 5)}, [groups[0], groups[3]])
        # Greedy: the likeliest token after each prefix.
        module = transformers.AutoModelForCausalLM.from_pretrained(golden_folder("qwen3"))
        for sample, penalty in ((2, 1.0), (3, 1.5)):
            tokens = [5, 6, 7]
            for token in found[sample]["token"]:
                with torch.no_grad():
                    logits = module(torch.tensor([tokens])).logits[0, -1]
                known = torch.tensor(sorted(set(tokens)))
                logits[known] = torch.where(logits[known] > 0, logits[known] / penalty, logits[known] * penalty)
                self.assertEqual(token, int(logits.argmax()))
                tokens.append(token)

    def test_what_was_seen_stays_on_the_device(self):
        """It is rebuilt if rows come and go, not for each token, and equals the host's result."""
        learner = self.opened(golden_folder("qwen3"), 3)
        ways = [{**PLAIN, "repetition_penalty": 1.5}, PLAIN]
        groups = [([5, 6, 7], [0, 1]), ([9, 9], [2]), ([3], [3])]
        calls, held = [], []
        gather, take_in = samples.seen_tokens, generate._Columns.take

        def counted(rows, *arguments):
            calls.append(len(rows))
            return gather(rows, *arguments)

        def checked(columns, tokens, *more):
            take_in(columns, tokens, *more)
            rows = learner._generation._rows
            expected = gather(rows, columns.drawings, learner._policy.network.head.vocab_size, DEVICE)
            held.append(expected is not None)
            if expected is not None:
                # The host takes the token afterwards.
                expected[torch.arange(len(rows), device=tokens.device), tokens] = True
                self.assertTrue(torch.equal(columns.seen, expected))

        with (
            unittest.mock.patch.object(samples, "seen_tokens", counted), unittest.mock.patch.object(generate, "seen_tokens", counted),
            unittest.mock.patch.object(generate._Columns, "take", checked),
        ):
            found, _ = to_the_end(learner, groups, drawings=ways, drawn_by=[0, 1, 0])
        self.assertGreater(held.count(True), 20)
        # Three at first, the last one when they have ended: once as they begin, once for what follows.
        self.assertEqual(calls, [3, 3, 1, 1])
        self.assert_of_the_policy(learner, found, groups)

    def test_the_host_may_look_after_several_steps(self):
        """What is drawn after an end does not count, and nothing else depends on when the host looks."""
        cut = {**PLAIN, "temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3}
        ways = [PLAIN, cut, {**PLAIN, "temperature": 0.0, "repetition_penalty": 1.2}, {**PLAIN, "max_tokens": 3}]
        for architecture in ARCHITECTURES:
            learner = self.opened(golden_folder(architecture), 6)
            groups = numbered()
            end = to_the_end(learner, groups)[0][0]["token"][4]
            given = {"drawings": [{**way, "end_tokens": [end]} for way in ways], "drawn_by": [0, 1, 2, 3]}
            expected, _ = to_the_end(learner, groups, **given)
            self.assertEqual({one["end"] for one in expected.values()}, {1, 2})
            for look in (2, 5, 64):
                with unittest.mock.patch.dict(generate._LOOK, {DEVICE: look}):
                    found, _ = to_the_end(learner, groups, **given)
                self.assertEqual(found.keys(), expected.keys())
                for sample, one in found.items():
                    self.assertEqual((one["token"], one["end"]), (expected[sample]["token"], expected[sample]["end"]))
                    for name in ("logprob", "entropy"):
                        self.assert_close(one[name], expected[sample][name], 1e-5, name)

    def test_a_group_holds_its_prompt_once(self):
        learner = self.opened(golden_folder("qwen3"), 64)
        generation = learner._generation
        groups = numbered()
        call(learner, "generate", *asked(groups, seconds=0.0))
        self.draw_some(generation, 2)
        prompts, rows = generation._cache.prompts, generation._cache.rows
        self.assertEqual((prompts.num_rows, rows.num_rows), (len(groups), 10))
        # Rounded up to whole blocks of columns: the longest prompt, and the longest completion alone.
        self.assertEqual((prompts.num_columns, rows.num_columns), (16, 16))
        self.assertEqual(sorted(row.slot.number for row in generation._rows), [0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
        # The slot of a group without samples is the next prompt's.
        call(learner, "generate", *asked([([8, 8], [20, 21])], abort=[3, 4], seconds=0.0))
        self.draw_some(generation, 5)
        self.assertEqual({row.slot.number for row in generation._rows if row.sample >= 20}, {1})
        self.assertEqual(prompts.num_rows, len(groups))

    def test_a_prompt_that_has_begun_frees_its_slot_when_the_last_of_its_samples_is_aborted(self):
        learner = self.opened(golden_folder("qwen3"), 2)
        generation = learner._generation
        call(learner, "generate", *asked([([5, 6, 7], [0, 1, 2])], seconds=0.0))
        self.draw_some(generation, 2)
        call(learner, "generate", *asked([([9, 9], [5])], abort=[2, 0, 1], seconds=0.0))
        self.assertEqual(generation._free_slots, [0])

    @contextlib.contextmanager
    def simulated_graphs(self, learner):
        """Captures steps on a CPU: a graph repeats the step that it captured, over the columns that it captured. Gives
        what is captured and replayed, and the pool of each capture with the number of times that graphs were dropped.
        """
        captured, replayed, pools, forgotten, handles, forget = [], [], [], [], iter(range(1, 99)), StepGraphs.forget

        class Graph:
            def replay(self):
                replayed.append(self.columns.kind)
                longest = self.columns.longest
                self.step(self.columns)
                self.columns.longest = longest

        @contextlib.contextmanager
        def capture(graph, pool):
            pools.append((len(forgotten), pool))
            graphs = learner._generation._graphs
            graph.step = graphs._step

            def note(columns):
                graph.columns = columns
                captured.append(columns.kind)
                columns.longest += 1

            graphs._step = note
            yield
            graphs._step = graph.step

        def forgets(graphs):
            forgotten.append(graphs)
            forget(graphs)

        with (
            unittest.mock.patch.object(generate, "_can_capture", lambda options: True),
            unittest.mock.patch("torch.cuda.CUDAGraph", Graph), unittest.mock.patch("torch.cuda.graph", capture),
            unittest.mock.patch("torch.cuda.graph_pool_handle", lambda: next(handles)), unittest.mock.patch.object(StepGraphs, "forget", forgets),
            unittest.mock.patch.dict(generate._LOOK, {"cpu": 3}), unittest.mock.patch.object(one_query, "_kernel", lambda _: row_by_row),
        ):
            learner._generation._clear()
            yield captured, replayed, pools

    def test_captured_steps_give_the_same_samples(self):
        """With a graph that runs what it captured: widths with idle rows, columns copied into those that are held."""
        cut = {**PLAIN, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.3}
        given = {"drawings": [cut, {**cut, "temperature": 0.0}], "drawn_by": [0, 1, 0, 0]}
        groups = numbered([(prompt, 2 * size) for prompt, size in PROMPTS])
        plain = self.opened(golden_folder("qwen3"), 9)
        expected, _ = to_the_end(plain, groups, **given)
        learner = self.opened(golden_folder("qwen3"), 9)
        with self.simulated_graphs(learner) as (captured, replayed, pools):
            found, _ = to_the_end(learner, groups, **given)
        self.assertEqual({key: one["token"] for key, one in found.items()}, {key: one["token"] for key, one in expected.items()})
        self.assertEqual(len(captured), len(set(captured)), "each width and kind once")
        self.assertEqual(len({pool for _, pool in pools}), len({number for number, _ in pools}), "graphs share their memory until they are dropped")
        self.assertGreater(len(replayed), 2 * len(captured))
        self.assertTrue({width for width, _ in captured} <= {1, 2, 3, 4, 5, 6, 7, 8, 10}, captured)

    def test_captured_steps_follow_weights_that_move_while_samples_are_in_flight(self):
        """A graph names places in memory, and weights that were set aside are in others."""
        # Six at once, then six more.
        groups, given = numbered([([5, 6, 7], 12)]), {"drawings": [{**PLAIN, "max_tokens": 20}]}
        expected, _ = to_the_end(self.opened(golden_folder("qwen3"), 6), groups, **given)
        learner, found = self.opened(golden_folder("qwen3"), 6), {}
        with self.simulated_graphs(learner) as (_, replayed, pools):
            call(learner, "generate", *asked(groups, seconds=0.0, **given))
            self.draw_some(learner._generation, 8)
            before = len(replayed)
            call(learner, "keep")
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
            while settings["num_open"]:
                settings, answer = call(learner, "generate", *asked([]))
                take(answer, found)
        self.assertGreater(before, 0)
        self.assertGreater(len(replayed), before)
        self.assertGreater(len({number for number, _ in pools}), 1, "graphs of the other weights are dropped")
        self.assertEqual({key: one["token"] for key, one in found.items()}, {key: one["token"] for key, one in expected.items()})

    def test_a_model_that_cannot_be_captured_runs_step_by_step(self):
        learner = self.opened(golden_folder("qwen3"), 9)
        expected, _ = to_the_end(learner, numbered())

        @contextlib.contextmanager
        def capture(graph, pool):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
            yield

        with (
            unittest.mock.patch.object(generate, "_can_capture", lambda options: True),
            unittest.mock.patch("torch.cuda.CUDAGraph", object), unittest.mock.patch("torch.cuda.graph", capture),
            unittest.mock.patch("torch.cuda.graph_pool_handle", lambda: 1),
        ):
            learner._generation._clear()
            call(learner, "generate", *asked(numbered(), seconds=0.0))
            self.draw_some(learner._generation, 4)
            self.assertRegex(learner._generation.describe()[0], "not captured as CUDA graphs: operation not permitted when stream is capturing$")
            found, _ = to_the_end(learner, [])
        self.assertEqual({key: one["token"] for key, one in found.items()}, {key: one["token"] for key, one in expected.items()})

    def test_windows_caps_and_experts(self):
        capped = {"Gemma2Config": {"sliding_window": 4, "query_pre_attn_scalar": 6}}
        for kind, more in {**KINDS, **capped}.items():
            with self.subTest(kind):
                learner = self.opened(self.folder(tiny_config(kind, **more)), 6)
                groups = numbered()
                found, _ = to_the_end(learner, groups)
                self.assert_of_the_policy(learner, found, groups)

    def test_an_adapter_recomputed_layers_and_weights_set_aside(self):
        learner = self.opened(
            golden_folder("qwen2"), recompute_activations=True, options={"lora": {"rank": 2, "alpha": 4, "seed": 1}}
        )
        randomise(learner._policy.network.adapted, 5)
        groups = numbered()
        before, _ = to_the_end(learner, groups)
        self.assert_of_the_policy(learner, before, groups)
        call(learner, "keep")
        held = [(place, before[sample]["token"]) for place, (_, group) in enumerate(groups) for sample in group]
        wave = columns([prompt for prompt, _ in groups], held)
        _, answer = call(learner, "forward_hold", {"network": "policy"}, wave)
        # A held graph stays good beside it.
        self.assertEqual(to_the_end(learner, groups)[0], before)
        call(learner, "backward", {}, {"logprob": torch.ones_like(answer["logprob"])})
        call(learner, "optim_step", {"network": "policy", "learning_rate": 0.1})
        self.assertEqual(to_the_end(learner, groups)[0], before, "those that were set aside")
        call(learner, "publish", {"version": 1})
        after, _ = to_the_end(learner, groups)
        self.assertNotEqual([one["token"] for one in after.values()], [one["token"] for one in before.values()])
        self.assert_of_the_policy(learner, after, groups)

    def test_samples_go_on_by_new_weights(self):
        """Tokens after a publication are drawn from the new weights, over a cache of what the old ones computed."""
        learner = self.opened(golden_folder("llama"), 1)
        groups = [([5, 6, 7], [0, 1])]
        untouched, _ = to_the_end(learner, groups)
        call(learner, "generate", *asked(groups, seconds=0.0))
        generation = learner._generation
        self.draw_some(generation, 3)
        settings, answer = call(learner, "generate", *asked([], seconds=0.0))
        found = {}
        take(answer, found)
        module = transformers.AutoModelForCausalLM.from_pretrained(golden_folder("llama"), attn_implementation="eager").eval()
        _, cache = log_probabilities(module, [5, 6, 7, *found[0]["token"][:-1]])
        generator = torch.Generator().manual_seed(3)
        weights = learner._policy.network.weights
        with torch.no_grad():
            for name, master in weights.masters.items():
                master.add_((torch.randn(master.shape, generator=generator) * 0.02).to(DEVICE))
                module.get_parameter(name).copy_(master.cpu())
        weights.refresh()
        call(learner, "publish", {"version": 1})
        while settings["num_open"]:
            settings, answer = call(learner, "generate", *asked([]))
            take(answer, found)
        # The sample in flight: transformers continues with its cache from the old weights, and with the same keys.
        self.assertEqual(found[0]["token"][:3], untouched[0]["token"][:3])
        key = asked([([1], [0])])[1]["key"][0]
        for place, token in enumerate(found[0]["token"]):
            if place < 3:
                continue
            logp, cache = log_probabilities(module, found[0]["token"][place - 1 : place], cache)
            self.assertAlmostEqual(found[0]["logprob"][place], float(logp[token]), delta=1e-5)
            self.assertAlmostEqual(found[0]["entropy"][place], float(-(logp.exp() * logp).sum()), delta=1e-5)
            drawing = Drawing(1.0, 0, 1.0, 0.0, 1.0, 12, frozenset())
            number = float(uniform(key[None].cpu(), torch.tensor([place]))[0])
            self.assertEqual(token, drawn_plainly(logp.tolist(), drawing, number, set()))
        self.assertNotEqual(found[0]["logprob"][3:], untouched[0]["logprob"][3:])
        # The one that waited has nothing of the old weights, neither of the prompt that both have.
        alone = [([5, 6, 7], [1])]
        self.assert_of_the_policy(learner, found, alone)
        self.assertEqual(found[1], to_the_end(learner, alone)[0][1])

    def test_in_bf16(self):
        learner = self.opened(golden_folder("qwen3"), options={"dtype": "bf16"})
        groups = numbered()
        found, _ = to_the_end(learner, groups)
        self.assert_of_the_policy(learner, found, groups, 0.05)

    def test_what_cannot_be_sampled_from_is_refused_when_it_is_opened(self):
        mamba = tiny_config("MambaConfig", state_size=4)
        with self.assertRaisesRegex(Refused, "Mamba"):
            self.opened(self.folder(mamba))
        sinks = tiny_config("GptOssConfig", num_local_experts=4, num_experts_per_tok=2, sliding_window=4)
        with self.assertRaisesRegex(Refused, "does not compute `s_aux`"):
            self.opened(self.folder(sinks))
        gpt2 = tiny_config("GPT2Config", n_positions=64, n_embd=24, n_layer=2, n_head=4)
        try:
            learner = self.opened(self.folder(gpt2))
        except Refused as error:
            self.assertIn("cannot be sampled from", str(error))
        else:
            groups = numbered()
            self.assert_of_the_policy(learner, to_the_end(learner, groups)[0], groups)

    def test_a_model_that_forgets_what_the_cache_holds_is_refused(self):
        learner = opened(golden_folder("llama"))
        network = learner._policy.network
        decode = generate.RowCache.step
        try:
            generate.RowCache.step = lambda self, lengths, *more: decode(self, (lengths - 1).clamp(min=0), *more)
            self.assert_refused(Refused, "one by one are not those of a whole", generate.Generation, network, 4)
        finally:
            generate.RowCache.step = decode
        generate.Generation(network, 4)

    def test_requests_that_break_the_page(self):
        learner = opened(golden_folder("llama"))
        self.assert_refused(Refused, "not opened to generate", call, learner, "generate", *asked([([1], [0])]))
        learner = self.opened(golden_folder("llama"))

        def refused(pattern, settings=None, columns=None, groups=(([1, 2], [0, 1]),)):
            given, whole = asked(list(groups))
            whole |= columns or {}
            whole = {name: one for name, one in whole.items() if one is not None}
            self.assert_refused(RequestError, pattern, call, learner, "generate", {**given, **(settings or {})}, whole)

        refused("`seconds`", {"seconds": -1.0})
        refused("top_q", {"drawing": [{**PLAIN, "top_q": 1}]})
        refused("at most 1", {"drawing": [{**PLAIN, "top_p": 1.5}]})
        refused("`temperature` is 0, or", {"drawing": [{**PLAIN, "temperature": 1e-9}]})
        refused("`max_tokens`", {"drawing": [{**PLAIN, "max_tokens": 0}]})
        refused("`prompt_drawing` must lie", {"drawing": []})
        refused("the column `key` is missing", columns={"key": None})
        refused("no column `extra`", columns={"extra": torch.zeros(1)})
        refused("`prompt_of` must lie", columns={"prompt_of": torch.tensor([0, 1], dtype=torch.int32)})
        refused("`prompt_offset` must begin", columns={"prompt_offset": torch.tensor([0, 0, 2])})
        refused("holds 12345", groups=[([12345], [0])])
        refused("or repeated", groups=[([1], [3, 3])])
        call(learner, "generate", *asked([([1], [3])], seconds=0.0))
        refused("sample 3 is open already", groups=[([1], [3])])


if __name__ == "__main__":
    import unittest

    unittest.main()
