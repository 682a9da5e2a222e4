"""The losses as functions of PyTorch: gradcheck, shapes, devices' types, and one update that goes the right way."""

import math

import pytest
import tamis

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: the tests of tamis.torch are left out")
import tamis.torch as losses  # noqa: E402


def batch(dtype=torch.float64, rows=3, columns=4):
    """Log-probabilities [B, T] with a mask, old ones near them, entropies."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda low, high: low + (high - low) * torch.rand(rows, columns, generator=generator, dtype=torch.float64)  # noqa: E731
    logprob, entropy = draw(-3, -0.1), draw(0.1, 2)
    old = logprob + draw(-0.3, 0.3)
    mask = torch.ones(rows, columns, dtype=torch.bool)
    mask[1, 2:] = False
    return [tensor.to(dtype) for tensor in (logprob, old, entropy)] + [mask]


@pytest.mark.parametrize("loss", ["clip", "reinforce", "sapo", "luspo", "geo_mean", "kl_cov", "dro"])
def test_gradcheck(loss):
    logprob, old, entropy, mask = batch()
    aggregation = {"geo_mean": "seq-mean-token-mean", "luspo": "seq-mean-token-sum"}.get(loss, "token-mean")
    objective = tamis.Objective(
        {"kind": "dro", "beta": 0.1} if loss == "dro" else loss, aggregation=aggregation, kl={"coefficient": 0.1}, entropy={"coefficient": 0.05}
    )
    advantage = torch.tensor([0.7, -1.3, 0.4], dtype=torch.float64)
    selection = objective.select(logprob.numpy(), advantage.numpy(), mask=mask.numpy(), old=old.numpy()) if (
        objective.needs_selection
    ) else None

    def value(logprob, entropy):
        return losses.policy_loss(
            objective, logprob, advantage, mask=mask, old=old, reference=old, entropy=entropy, selection=selection
        ).loss

    inputs = (logprob.requires_grad_(), entropy.requires_grad_())
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-8)


def test_gradcheck_of_the_critic():
    values, old, _, mask = batch()
    returns = old + 1.0
    loss = tamis.ValueLoss(cliprange_value=0.2)

    def value(values):
        return losses.value_loss(loss, values, old, returns, mask=mask).loss

    assert torch.autograd.gradcheck(value, (values.requires_grad_(),), eps=1e-6, atol=1e-8)


def test_the_gradient_of_autograd_through_the_same_formula():
    logprob, old, _, mask = batch()
    logprob.requires_grad_()
    advantage = torch.tensor([0.7, -1.3, 0.4], dtype=torch.float64)
    objective = tamis.Objective({"kind": "clip", "dual_clip": None, "log_ratio_limit": None})
    ours = losses.policy_loss(objective, logprob, advantage, mask=mask, old=old).loss
    ratio = torch.exp(logprob - old)
    column = advantage[:, None]
    theirs = torch.maximum(-column * ratio, -column * ratio.clamp(0.8, 1.2))[mask].mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(3 * ours, logprob)
    (expected,) = torch.autograd.grad(3 * theirs, logprob)
    assert torch.allclose(gradient, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision(dtype):
    logprob, old, entropy, mask = batch(dtype)
    logprob.requires_grad_()
    entropy.requires_grad_()
    objective = tamis.Objective("clip", entropy={"coefficient": 0.1})
    advantage = torch.tensor([1.0, -1.0, 0.5])
    result = losses.policy_loss(objective, logprob, advantage, mask=mask, old=old, entropy=entropy)
    assert result.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    result.loss.backward()
    for tensor in (logprob, entropy):
        assert tensor.grad.dtype == dtype and tensor.grad.shape == tensor.shape
        assert tensor.grad[mask].abs().sum() > 0 and tensor.grad[~mask].abs().sum() == 0
    assert math.isfinite(result.metrics["actor/entropy"]) and result.normalisers.tokens == mask.sum().item()


def test_flat_and_padded_are_one():
    logprob, old, _, mask = batch()
    objective = tamis.Objective("clip")
    advantage = torch.tensor([0.7, -1.3, 0.4])
    padded = losses.policy_loss(objective, logprob, advantage, mask=mask, old=old).loss
    lengths = mask.sum(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    flat = losses.policy_loss(objective, logprob[mask], advantage, offsets=offsets, old=old[mask]).loss
    assert flat.item() == padded.item()


def test_selection_of_a_micro_batch_is_the_callers():
    logprob, old, _, mask = batch()
    objective = tamis.Objective("kl_cov")
    advantage = torch.tensor([0.7, -1.3, 0.4])
    whole = losses.policy_loss(objective, logprob, advantage, mask=mask, old=old)
    with pytest.raises(ValueError, match="over the whole optimizer batch"):
        losses.policy_loss(objective, logprob, advantage, mask=mask, old=old, normalisers=whole.normalisers)


def test_an_update_goes_the_right_way():
    torch.manual_seed(0)
    logits = torch.zeros(1, 4, 6, requires_grad=True)
    tokens = torch.tensor([[1, 2, 3, 4]])
    optimizer = torch.optim.SGD([logits], lr=1.0)
    objective = tamis.Objective("clip")
    logprob = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
    before = logprob.detach().clone()
    losses.policy_loss(objective, logprob, torch.tensor([1.0]), old=before).loss.backward()
    optimizer.step()
    after = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
    assert (after > before).all()
