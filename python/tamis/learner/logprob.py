"""Log-probabilities and entropies of tokens from hidden states and the head's weights, chunk by chunk.

With h the hidden state before a token y, and W the head's weights:

    z = factor * cap(scale * (W h + bias))      factor = sharpness / temperature
    logprob = z_y - log sum_v exp(z_v)          entropy = - sum_v p_v log p_v,  p = softmax(z)
    dL/dz_v = dL/dlogprob (1[v = y] - p_v) - dL/dentropy p_v (log p_v + entropy)

Log-probabilities of other tokens at the same place (candidates) have the derivative of `logprob`, each with its own y.

The logits of all tokens would be the largest tensor of a pass (10 GB of f32 for 16k tokens of Qwen2.5-7B). Here only
those of one chunk of tokens exist at a time, in f32, and are recomputed in the backward pass. The head's gradient is
summed in f32 over the chunks. In bf16 the products read bf16 and are summed in f32.
"""

import torch

# Numbers in a chunk's logits, if the number of tokens is not set: 512 MB of f32 on a GPU; on a CPU about as much as its
# caches hold.
_CHUNK_NUMBERS = {"cuda": 1 << 27, "cpu": 1 << 21}


def chunk_tokens(device, vocab_size):
    """Tokens of a chunk if the user sets no number."""
    return max(16, _CHUNK_NUMBERS.get(device.type, 1 << 22) // vocab_size)


def product(left, right):
    """`left @ right` in f32, whatever type the factors are of."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _add_product(total, left, right):
    """`total += left @ right` in f32."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())


def logits(hidden, weight, bias, scale, cap):
    """The model's logits, f32 [n, V], of hidden states [n, D]."""
    z = product(hidden, weight.t())
    if bias is not None:
        z += bias
    if scale != 1.0:
        z *= scale
    if cap is not None:
        z = z.div_(cap).tanh_().mul_(cap)
    return z


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, candidates, scale, cap, factor, chunk):
        num_tokens = hidden.shape[0]
        of_candidates = hidden.new_empty(candidates.shape, dtype=torch.float32)
        logprob, entropy, top, log_sum = hidden.new_empty(4, num_tokens, dtype=torch.float32)
        for part in _parts(num_tokens, chunk):
            z = logits(hidden[part], weight, bias, scale, cap)
            if factor != 1.0:
                z *= factor
            # Everything relative to the largest: if one token has almost all probability, its small entropy must not be
            # the difference of two large numbers.
            top[part] = z.amax(1)
            z -= top[part, None]
            at_target = z.gather(1, targets[part, None])[:, 0]
            p = z.exp()
            total = p.sum(1)
            log_sum[part] = total.log()
            logprob[part] = at_target - log_sum[part]
            of_candidates[part] = z.gather(1, candidates[part]).sub_(log_sum[part, None])
            entropy[part] = log_sum[part] - torch.linalg.vecdot(p, z).div_(total)
        ctx.save_for_backward(hidden, weight, bias, targets, candidates, top, log_sum, entropy)
        ctx.constants = scale, cap, factor, chunk
        ctx.set_materialize_grads(False)
        return logprob, entropy, of_candidates

    @staticmethod
    def backward(ctx, d_logprob, d_entropy, d_candidates):
        hidden, weight, bias, targets, candidates, top, log_sum, entropy = ctx.saved_tensors
        scale, cap, factor, chunk = ctx.constants
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if d_logprob is None and d_entropy is None and d_candidates is None:
            return (None,) * 9
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias else None
        for part in _parts(hidden.shape[0], chunk):
            z = logits(hidden[part], weight, bias, scale, cap)
            slope = z.div(cap).square_().neg_().add_(1) if cap is not None else None
            z = torch.add(-top[part, None], z, alpha=factor, out=z).sub_(log_sum[part, None])
            p = z.exp()
            # By the logits before scaling.
            given = (d_logprob, d_entropy, d_candidates)
            by_logprob, by_entropy, by_candidates = (None if one is None else one[part] * (factor * scale) for one in given)
            # By all log-probabilities of a place together.
            by_all = by_logprob
            if by_candidates is not None:
                by_all = by_candidates.sum(1) if by_all is None else by_all + by_candidates.sum(1)
            if by_entropy is not None:
                rest = by_entropy * entropy[part]
                rest = rest if by_all is None else rest + by_all
                # p (-by_entropy log p - rest)
                d = torch.addcmul(-rest[:, None], z, -by_entropy[:, None], out=z).mul_(p)
            else:
                d = p.mul_(-by_all[:, None])
            if by_logprob is not None:
                d.scatter_add_(1, targets[part, None], by_logprob[:, None])
            if by_candidates is not None:
                d.scatter_add_(1, candidates[part], by_candidates)
            if slope is not None:
                d *= slope
            if wants_bias:
                d_bias += d.sum(0)
            d = d.to(weight.dtype)
            if wants_hidden:
                torch.mm(d, weight, out=d_hidden[part])
            if wants_weight:
                _add_product(d_weight, d.t(), hidden[part])
        return d_hidden, d_weight, d_bias, None, None, None, None, None, None


def _parts(num_tokens, chunk):
    return [slice(begin, min(begin + chunk, num_tokens)) for begin in range(0, num_tokens, chunk)]


@torch.no_grad()
def top_tokens(hidden, weight, bias, targets, number, *, scale=1.0, cap=None, factor=1.0, chunk=1024):
    """Log-probability of each target, f32 [N], and the `number` likeliest tokens at its place, the likeliest first: ids,
    i64 [N, number], and log-probabilities, f32 [N, number]. Arguments as of `logprob_and_entropy`.
    """
    num_tokens = hidden.shape[0]
    logprob = hidden.new_empty(num_tokens, dtype=torch.float32)
    ids = torch.empty(num_tokens, number, dtype=torch.int64, device=hidden.device)
    of_ids = hidden.new_empty(num_tokens, number, dtype=torch.float32)
    for part in _parts(num_tokens, chunk):
        z = logits(hidden[part], weight, bias, scale, cap)
        if factor != 1.0:
            z *= factor
        log_sum = z.logsumexp(1)
        logprob[part] = z.gather(1, targets[part, None])[:, 0] - log_sum
        best, ids[part] = z.topk(number, dim=1)
        of_ids[part] = best - log_sum[:, None]
    return logprob, ids, of_ids


def logprob_and_entropy(hidden, weight, bias, targets, *, candidates=None, scale=1.0, cap=None, factor=1.0, chunk=1024):
    """Log-probability and entropy of each target, both f32 [N] in nats, both differentiable. With `candidates`, i64 [N, k],
    also their log-probabilities, f32 [N, k], differentiable.

    hidden: [N, D] in the type of `weight` [V, D]; bias: [V] or `None`; targets: i64 [N]. `factor` multiplies the logits
    (1 / temperature). `chunk` is the number of tokens whose logits exist at once; it changes the outputs only by the
    rounding of matrix products.
    """
    given = targets.new_empty(targets.shape[0], 0) if candidates is None else candidates
    columns = _LogProb.apply(hidden, weight, bias, targets, given, scale, cap, factor, chunk)
    return columns[:2] if candidates is None else columns
