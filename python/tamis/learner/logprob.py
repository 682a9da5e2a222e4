"""Log-probabilities and entropies of tokens from hidden states and the head's weights, chunk by chunk.

With h the hidden state before a token y, and W the head's weights:

    z = factor * cap(scale * (W h + bias))      factor = sharpness / temperature
    logprob = z_y - log sum_v exp(z_v)          entropy = - sum_v p_v log p_v,  p = softmax(z)
    dL/dz_v = dL/dlogprob (1[v = y] - p_v) - dL/dentropy p_v (log p_v + entropy)

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
    def forward(ctx, hidden, weight, bias, targets, scale, cap, factor, chunk):
        num_tokens = hidden.shape[0]
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
            entropy[part] = log_sum[part] - torch.linalg.vecdot(p, z).div_(total)
        ctx.save_for_backward(hidden, weight, bias, targets, top, log_sum, entropy)
        ctx.constants = scale, cap, factor, chunk
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(ctx, d_logprob, d_entropy):
        hidden, weight, bias, targets, top, log_sum, entropy = ctx.saved_tensors
        scale, cap, factor, chunk = ctx.constants
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if d_logprob is None and d_entropy is None:
            return (None,) * 8
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias else None
        for part in _parts(hidden.shape[0], chunk):
            z = logits(hidden[part], weight, bias, scale, cap)
            slope = z.div(cap).square_().neg_().add_(1) if cap is not None else None
            z = torch.add(-top[part, None], z, alpha=factor, out=z).sub_(log_sum[part, None])
            p = z.exp()
            # By the logits before scaling.
            by_logprob, by_entropy = (None if one is None else one[part] * (factor * scale) for one in (d_logprob, d_entropy))
            if by_entropy is not None:
                rest = by_entropy * entropy[part]
                rest = rest if by_logprob is None else rest + by_logprob
                # p (-by_entropy log p - rest)
                d = torch.addcmul(-rest[:, None], z, -by_entropy[:, None], out=z).mul_(p)
            else:
                d = p.mul_(-by_logprob[:, None])
            if by_logprob is not None:
                d.scatter_add_(1, targets[part, None], by_logprob[:, None])
            if slope is not None:
                d *= slope
            if wants_bias:
                d_bias += d.sum(0)
            d = d.to(weight.dtype)
            if wants_hidden:
                torch.mm(d, weight, out=d_hidden[part])
            if wants_weight:
                _add_product(d_weight, d.t(), hidden[part])
        return d_hidden, d_weight, d_bias, None, None, None, None, None


def _parts(num_tokens, chunk):
    return [slice(begin, min(begin + chunk, num_tokens)) for begin in range(0, num_tokens, chunk)]


def logprob_and_entropy(hidden, weight, bias, targets, *, scale=1.0, cap=None, factor=1.0, chunk=1024):
    """Log-probability and entropy of each target, both f32 [N] in nats, both differentiable.

    hidden: [N, D] in the type of `weight` [V, D]; bias: [V] or `None`; targets: i64 [N]. `factor` multiplies the logits
    (1 / temperature). `chunk` is the number of tokens whose logits exist at once; it changes the outputs only by the
    rounding of matrix products.
    """
    return _LogProb.apply(hidden, weight, bias, targets, scale, cap, factor, chunk)
