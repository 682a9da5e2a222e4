"""The reward model: its scores beside a direct call of transformers, its texts, and what is refused."""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import support
import torch
import transformers
from support import Case
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tamis.learner.connections import DeviceLost
from tamis.learner.protocol import Refused, RequestError, Settings
from tamis.reward.scoring import RewardModel
from tamis.reward.server import ScoringSession

TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end>\n{% endfor %}"
WORDS = "<pad> <bos> <eos> <unk> <user> <assistant> <system> <end> what is 2 + ? it 4 5 six seven".split()
CONVERSATION = [{"role": "user", "content": "what is 2 + 2 ?"}, {"role": "assistant", "content": "it is 4"}]
TEXTS = ["what is 2 + 2 ? it is 4", "5", "what is 2 + 2 ? six seven six seven six", "it is 4 4 4"]


def save_tokenizer(folder, pad="<pad>", template=TEMPLATE, **more):
    """A tokenizer of words."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", **more
    )
    fast.chat_template = template
    fast.save_pretrained(folder)


def save_reward_model(folder, kind="Qwen3Config", num_labels=1, **tokenizer):
    """A tiny reward model with random weights."""
    config = support.tiny_config(kind, num_labels=num_labels, pad_token_id=None, vocab_size=640)
    module = support.save_tiny(folder, config, kind=transformers.AutoModelForSequenceClassification)
    if kind == "Qwen2Config":
        # transformers cuts texts for it as Qwen's own tokenizer does, whatever the folder's says.
        shutil.copytree(support.GOLDEN / "hf/tokenizer", folder, dirs_exist_ok=True)
    else:
        save_tokenizer(folder, **tokenizer)
    return module


def direct(folder, text, label=0, special=False):
    """What TRL does with one text: tokenizer, model, logit."""
    module = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    module.config.pad_token_id = tokenizer.pad_token_id
    if not isinstance(text, str):
        text = tokenizer.apply_chat_template(text, tokenize=False)
    batch = tokenizer([text], return_tensors="pt", padding=True, padding_side="right", add_special_tokens=special)
    with torch.inference_mode():
        return module(**batch).logits[0]


def opened(folder, **more):
    """The reward model of a folder on the CPU."""
    return RewardModel(Settings({"folder": str(folder), "device": "cpu", "threads": 1, **more}))


def scores(model, texts):
    """Only the scores."""
    return [answer["score"] for answer in model.score(texts)]


class RewardModelTest(Case):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_scores_are_those_of_transformers(self):
        for kind in ("Qwen2Config", "LlamaConfig", "Qwen3Config"):
            with self.subTest(kind):
                folder = self.folder / kind
                save_reward_model(folder, kind)
                expected = [direct(folder, text)[0] for text in [*TEXTS, CONVERSATION]]
                self.assertGreater(torch.stack(expected).std().item(), 1e-3, "texts that all score alike show nothing")
                for batch_size in (1, 2, 16):
                    found = scores(opened(folder, batch_size=batch_size), [*TEXTS, CONVERSATION])
                    self.assert_close(found, torch.stack(expected), 1e-5, f"batches of {batch_size}")

    def test_the_end_token_pads_where_there_is_no_other(self):
        save_reward_model(self.folder, pad=None)
        texts = [*TEXTS, "it is 4 <eos>", "<eos> 5 <eos> <eos>"]
        expected = [direct(self.folder, text)[0] for text in texts]
        self.assert_close(scores(opened(self.folder), texts), torch.stack(expected), 1e-5)

    def test_labels_and_activations(self):
        save_reward_model(self.folder, num_labels=3)
        logits = direct(self.folder, TEXTS[0]).double()
        for label in range(3):
            self.assert_close(scores(opened(self.folder, label=label), TEXTS[:1])[0], logits[label], 1e-5)
        for activation, expected in [("sigmoid", torch.sigmoid(logits)), ("softmax", torch.softmax(logits, 0))]:
            model = opened(self.folder, label=2, activation=activation)
            self.assert_close(scores(model, TEXTS[:1])[0], expected[2], 1e-5, activation)
        with self.assertRaisesRegex(Refused, "3 labels, and no label 3"):
            opened(self.folder, label=3)

    def test_special_tokens_are_added_where_asked_for_and_never_to_a_conversation(self):
        save_reward_model(self.folder)
        model = opened(self.folder, add_special_tokens=True)
        self.assertEqual(model.tokens("it is 4")[0][0], 1)
        self.assertNotEqual(model.tokens(CONVERSATION)[0][0], 1)
        self.assert_close(scores(model, TEXTS[:1])[0], direct(self.folder, TEXTS[0], special=True)[0], 1e-5)

    def test_a_long_text_has_no_score_or_is_cut_and_said_to_be(self):
        save_reward_model(self.folder)
        long = "what is 2 + 2 ? " * 2 + "it is 4"
        [found, other] = opened(self.folder, max_length=6).score([long, "it is 4"])
        self.assertIn("the text has 15 tokens, and at most 6 are read", found["error"])
        self.assertIn("score", other)
        for side, kept in [("left", "+ 2 ? it is 4"), ("right", "what is 2 + 2 ?")]:
            [found] = opened(self.folder, max_length=6, overlong=side).score([long])
            self.assertTrue(found["truncated"])
            self.assert_close(found["score"], direct(self.folder, kept)[0], 1e-5, side)
        # The model's own limit.
        [found] = opened(self.folder).score(["4 " * 65])
        self.assertIn("65 tokens, and at most 64", found["error"])
        with self.assertRaisesRegex(Refused, "reads 64 tokens, and `max_length` is 65"):
            opened(self.folder, max_length=65)

    def test_a_text_without_tokens_costs_itself_alone(self):
        save_reward_model(self.folder)
        empty, other = opened(self.folder).score(["", "5"])
        self.assertEqual(empty, {"error": "the text has no tokens"})
        self.assert_close(other["score"], direct(self.folder, "5")[0], 1e-5)

    def test_a_score_that_is_not_finite_is_none(self):
        save_reward_model(self.folder)
        model = opened(self.folder)
        with torch.inference_mode():
            model.module.score.weight.fill_(torch.inf)
        self.assertRegex(model.score(["5"])[0]["error"], "the model's score is (inf|-inf|nan)")

    def test_half_precision_is_near(self):
        save_reward_model(self.folder)
        expected = torch.stack([direct(self.folder, text)[0] for text in TEXTS])
        self.assert_close(scores(opened(self.folder, dtype="bf16"), TEXTS), expected, 0.05)

    def test_a_batch_that_is_too_large_is_halved(self):
        save_reward_model(self.folder)
        model, seen = opened(self.folder), []
        forward = model._forward

        def limited(batch):
            seen.append(len(batch))
            if len(batch) > 1:
                raise torch.OutOfMemoryError("too many")
            return forward(batch)

        model._forward = limited
        expected = torch.stack([direct(self.folder, text)[0] for text in TEXTS])
        self.assert_close(scores(model, TEXTS), expected, 1e-5)
        self.assertEqual(seen, [4, 2, 1, 1, 2, 1, 1])
        # If a single text does not fit, the error names the fix, and other texts keep their scores.

        def never(batch):
            if max(map(len, batch)) > 6:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
            return forward(batch)

        model._forward = never
        found = model.score(TEXTS)
        self.assertRegex(found[0]["error"], "^out of memory for [0-9]+ tokens: .*`max_length`.*`dtype`.*`batch_size`")
        self.assertAlmostEqual(found[1]["score"], expected[1].item(), delta=1e-5)

    def test_a_model_that_does_not_fit_is_refused(self):
        save_reward_model(self.folder)
        full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        with mock.patch.object(torch.nn.Module, "to", side_effect=full):
            with self.assertRaisesRegex(Refused, "out of memory: the model in .* does not fit on cpu: CUDA out") as told:
                opened(self.folder)
        self.assertIn("`dtype`", told.exception.hint)

    def submitted(self, session, requests):
        """The answers to requests that wait together, by their place; an unanswered one is None."""
        answers = [None] * len(requests)

        def ask(place):
            body = json.dumps({"texts": requests[place]}).encode()
            answers[place] = session.submit("/v1/score", "application/json", body)

        for place in range(len(requests)):
            threading.Thread(target=ask, args=(place,), daemon=True).start()
        self.wait_for(lambda: session._jobs.qsize() == len(requests))
        return answers

    def wait_for(self, condition):
        until = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), until, "waited in vain")
            time.sleep(0.005)

    def test_a_request_that_breaks_off_does_not_fail_the_others(self):
        save_reward_model(self.folder)
        model, log = opened(self.folder), []
        scored = model.score
        failures = {"5": ValueError("no such text"), "six": MemoryError()}

        def score(texts):
            for text in texts:
                if text in failures:
                    raise failures[text]
            return scored(texts)

        model.score = score
        session = ScoringSession(model, log=log.append)
        answers = self.submitted(session, [["it is 4"], ["5"], [TEXTS[0], TEXTS[2]], ["six"]])
        threading.Thread(target=session.run, daemon=True).start()
        self.wait_for(lambda: None not in answers)
        self.assertEqual([answer.status for answer in answers], [200, 500, 200, 500])
        for answer, texts in ((answers[0], ["it is 4"]), (answers[2], [TEXTS[0], TEXTS[2]])):
            found = [one["score"] for one in json.loads(answer.body)["scores"]]
            self.assert_close(found, torch.stack([direct(self.folder, text)[0] for text in texts]), 1e-5)
        broken, full = (json.loads(answers[place].body)["error"] for place in (1, 3))
        self.assertEqual(broken["message"], "ValueError: no such text")
        self.assertRegex(log[-1], "(?s)^Traceback .*no such text$")
        self.assertEqual(full["message"], "out of memory: MemoryError")
        self.assertIn("`batch_size`", full["hint"])

    def test_a_device_that_is_lost_ends_the_process_and_answers_nothing(self):
        save_reward_model(self.folder)
        model, calls = opened(self.folder), []

        def forward(batch):
            calls.append(batch)
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

        model._forward = forward
        session = ScoringSession(model)
        answers = self.submitted(session, [["5"], ["it is 4"]])
        # A real GPU would still answer.
        self.enterContext(mock.patch("tamis.learner.device._computes", lambda: False))
        with self.assertRaisesRegex(DeviceLost, "cannot be computed on any more: CUDA error: an illegal memory access"):
            session.run()
        self.assertEqual(len(calls), 1, "nothing more is tried on a device that is lost")
        self.assertEqual(answers, [None, None])

    def test_what_is_no_reward_model_is_refused(self):
        language, bare, broken, scripted = (self.folder / name for name in ("language", "bare", "broken", "scripted"))
        support.save_tiny(language, support.tiny_config("Qwen2Config"))
        save_tokenizer(language)
        with self.assertRaisesRegex(Refused, "it is a Qwen2ForCausalLM: tensor `score.weight` is missing") as told:
            opened(language)
        self.assertIn("ForSequenceClassification", told.exception.hint)
        with self.assertRaisesRegex(Refused, "failed to read .*config.json"):
            opened(self.folder / "nowhere")
        # One without a tokenizer, and one without a chat template.
        save_reward_model(bare)
        (bare / "tokenizer.json").unlink()
        with self.assertRaisesRegex(Refused, "tokenizer"):
            opened(bare)
        # transformers invents one for some architectures.
        qwen = self.folder / "qwen"
        save_reward_model(qwen, "Qwen2Config")
        (qwen / "tokenizer.json").unlink()
        (qwen / "tokenizer_config.json").unlink()
        with self.assertRaisesRegex(Refused, "no tokenizer is in"):
            opened(qwen)
        save_reward_model(scripted, template=None)
        self.assertIn("no chat template", opened(scripted).score([CONVERSATION])[0]["error"])
        with self.assertRaisesRegex(Refused, "has no chat template"):
            opened(scripted, chat=True)
        # Another number of labels than its weights have, and weights that are not finite.
        save_reward_model(broken)
        config = json.loads((broken / "config.json").read_text())
        config["id2label"] = {"0": "a", "1": "b"}
        config["label2id"] = {"a": 0, "b": 1}
        (broken / "config.json").write_text(json.dumps(config))
        with self.assertRaisesRegex(Refused, r"shape \[1, 24\], expected \[2, 24\]"):
            opened(broken)
        module = save_reward_model(broken)
        with torch.no_grad():
            module.score.weight[0, 0] = torch.nan
        module.save_pretrained(broken)
        with self.assertRaisesRegex(Refused, "`score.weight` .* not finite"):
            opened(broken)
        with self.assertRaisesRegex(RequestError, "unknown key `labels`"):
            opened(broken, labels=1)
        with self.assertRaisesRegex(Refused, "this machine has no device"):
            opened(broken, device="mps")

    def test_requests_that_wait_are_scored_together_and_answered_each(self):
        save_reward_model(self.folder)
        model, batches = opened(self.folder), []
        scored = model.score
        model.score = lambda texts: batches.append(len(texts)) or scored(texts)
        session, answers = ScoringSession(model), {}

        def ask(number):
            body = json.dumps({"texts": [TEXTS[number], {"messages": CONVERSATION}]}).encode()
            answers[number] = session.submit("/v1/score", "application/json", body)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while session._jobs.qsize() < 3:
            time.sleep(0.01)
        threading.Thread(target=session.run, daemon=True).start()
        for thread in threads:
            thread.join()
        self.assertEqual(batches, [6])
        for number in range(3):
            found = [answer["score"] for answer in json.loads(answers[number].body)["scores"]]
            expected = torch.stack([direct(self.folder, text)[0] for text in (TEXTS[number], CONVERSATION)])
            self.assert_close(found, expected, 1e-5)
        for body in (b"{}", b'{"texts": "5"}', b'{"texts": [5]}', b'{"texts": [{"messages": []}]}', b"5"):
            with self.assertRaises(RequestError):
                session.submit("/v1/score", "application/json", body)

    def test_the_process_listens_when_its_model_is_loaded_and_says_what_is_wrong(self):
        save_reward_model(self.folder / "model")
        settings, path = self.folder / "settings.json", self.folder / "socket"
        settings.write_text(json.dumps({"folder": str(self.folder / "model"), "device": "cpu"}))
        command = [sys.executable, "-m", "tamis.reward", "--listen", f"unix:{path}", "--settings", str(settings)]
        environment = {"PYTHONPATH": str(support.ROOT / "python")}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.assertEqual(process.stdout.readline(), f"listening on unix:{path}\n")
            body = json.dumps({"texts": TEXTS}).encode()
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                head = f"POST /v1/score HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            found = [one["score"] for one in json.loads(answer.split(b"\r\n\r\n")[1])["scores"]]
            expected = torch.stack([direct(self.folder / "model", text)[0] for text in TEXTS])
            self.assert_close(found, expected, 1e-5)
        finally:
            process.terminate()
            process.wait(300)
            process.stdout.close()
        self.assertFalse(path.exists(), "a process that is told to end leaves no socket")
        settings.write_text(json.dumps({"folder": str(self.folder / "nowhere")}))
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        ending = json.loads(done.stderr.splitlines()[-1])
        self.assertRegex(ending["error"], "^failed to read .*nowhere/config.json")
        self.assertIn("hint", ending)


if __name__ == "__main__":
    support.unittest.main()
