"""AdamW's moments: f32 numbers or 8-bit ones, on the device of the weights or in the host's memory.

8 bits are those of bitsandbytes (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"): a number is an
index into 256 values between -1 and 1 (`dynamic_map`), times the scale of its block of 256.

    moment[i] = scale(block of i) * map[code[i]]      1.016 bytes instead of 4

Differs from bitsandbytes and torchao:

- The scale has the sign of the block's largest number, so that this number is exactly kept. Quantising what was
  dequantised then changes no bit, and a checkpoint has plain f32 moments, which any learner can resume from.
- The second moment is held as its root, whose range is that of the first moment. Held as it is, it would become 0 in
  rows that rarely have a gradient, while the first moment does not, and the step would divide by epsilon. (In a test of
  40 steps a weight then ends three times as far off as any has moved; with the root 4 %.)

Tensors of fewer than 4,096 numbers stay in f32, as in both libraries.
"""

import torch

BLOCK = 256
# Smaller tensors stay in f32.
LEAST_QUANTISED = 4096
# Roots below this count as 0: their squares would lose bits in f32. AdamW's epsilon is far larger.
_LEAST_ROOT = 2.0**-60


def dynamic_map(signed):
    """The 256 values, f32 and ascending (`create_dynamic_map` of bitsandbytes): seven decades, each with twice as many
    values as the one below it, 0 and 1.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, (2**decade if signed else 2 ** (decade + 1)) + 1, dtype=torch.float32)
        means = ((edges[:-1] + edges[1:]) / 2 * 10 ** (decade - 6)).tolist()
        values += means + [-value for value in means] * signed
    return torch.tensor(sorted(values), dtype=torch.float32)


def quantise(values, levels):
    """Codes u8 and scales f32 of flat f32 values; the last block may be shorter."""
    num_blocks = -(-values.numel() // BLOCK)
    blocks = torch.nn.functional.pad(values, (0, num_blocks * BLOCK - values.numel())).view(num_blocks, BLOCK)
    scales = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    # A block of zeros has scale 0.
    blocks = blocks / torch.where(scales == 0.0, 1.0, scales)
    codes = torch.bucketize(blocks, (levels[:-1] + levels[1:]) / 2, out_int32=True).to(torch.uint8)
    return codes.view(-1)[: values.numel()], scales.view(-1)


def dequantise(codes, scales, levels):
    """Flat f32 values."""
    values = levels[codes.int()]
    # A part of a block has its scale, too.
    return values.mul_(scales.repeat_interleave(BLOCK)[: values.numel()])


class Moments:
    """One moment of all weights by name, zeros at first. It is read and written in flat parts, of which each begins at
    a multiple of `BLOCK`.

    `is_second`: no number is below 0, and 8-bit numbers are roots.
    """

    def __init__(self, masters, is_second=False, in_8_bits=False, on_host=False):
        self._is_second, self._held = is_second, {}
        self._shapes = {name: master.shape for name, master in masters.items()}
        self._devices = {name: master.device for name, master in masters.items()}
        self._levels = {}
        for name, master in masters.items():
            device = torch.device("cpu") if on_host else master.device
            pinned = on_host and master.is_cuda
            if in_8_bits and master.numel() >= LEAST_QUANTISED:
                levels = dynamic_map(not is_second)
                zero = int((levels == 0).nonzero())
                codes = torch.full((master.numel(),), zero, dtype=torch.uint8, device=device, pin_memory=pinned)
                num_blocks = -(-master.numel() // BLOCK)
                self._held[name] = codes, torch.zeros(num_blocks, device=device, pin_memory=pinned)
                self._levels[master.device] = levels.to(master.device)
            else:
                self._held[name] = (torch.zeros(master.numel(), device=device, pin_memory=pinned),)

    def __iter__(self):
        return iter(self._held)

    def items(self):
        """Each name with its f32 values, one after the other."""
        return ((name, self[name]) for name in self._held)

    def __getitem__(self, name):
        """All values of a weight's moment, f32, on the weight's device; a view of them if they are held like that."""
        return self.read(name).view(self._shapes[name])

    @property
    def are_plain(self):
        """Whether all are held as f32 on the weights' devices, so that they may be changed in place."""
        return all(len(held) == 1 and held[0].device == self._devices[name] for name, held in self._held.items())

    @property
    def num_bytes(self):
        """Bytes of all."""
        return sum(one.numel() * one.element_size() for held in self._held.values() for one in held)

    def read(self, name, begin=0, end=None):
        """The values from `begin` to `end`, f32."""
        held, device = self._held[name], self._devices[name]
        if len(held) == 1:
            return held[0][begin:end].to(device, non_blocking=True)
        codes, scales = self._parts(name, begin, end)
        values = dequantise(
            codes.to(device, non_blocking=True), scales.to(device, non_blocking=True), self._levels[device]
        )
        return values.square_() if self._is_second else values

    def write(self, name, values, begin=0, end=None):
        """Takes these values; a result of `read` that was changed in place needs no copy if it is a view."""
        held = self._held[name]
        if len(held) == 1:
            own = held[0][begin:end]
            if own.data_ptr() != values.data_ptr():
                own.copy_(values, non_blocking=True)
            return
        if self._is_second:
            values = values.clamp(max=torch.finfo(torch.float32).max).sqrt_()
            values = torch.where(values < _LEAST_ROOT, 0.0, values)
        for own, new in zip(self._parts(name, begin, end), quantise(values, self._levels[self._devices[name]]), strict=True):
            own.copy_(new, non_blocking=True)

    def put(self, name, values):
        """Takes all values of a weight's moment."""
        self.write(name, values.to(self._devices[name]).reshape(-1))

    def _parts(self, name, begin, end):
        codes, scales = self._held[name]
        return codes[begin:end], scales[begin // BLOCK : None if end is None else -(-end // BLOCK)]

    def wait(self):
        """Waits until what was written is in the host's memory."""
        if any(self._devices[name].type == "cuda" and held[0].device.type == "cpu" for name, held in self._held.items()):
            torch.cuda.synchronize()

    def zero(self):
        """Sets all to zero."""
        for name, held in self._held.items():
            if len(held) == 1:
                held[0].zero_()
            else:
                held[0].fill_(int((self._levels[self._devices[name]] == 0).nonzero()))
                held[1].zero_()

    def copy(self):
        """Copies of what is held, in the host's memory."""
        return {name: tuple(one.to("cpu", copy=True) for one in held) for name, held in self._held.items()}

    def restore(self, copies):
        """Takes the copies of `copy`."""
        for name, held in self._held.items():
            for own, other in zip(held, copies[name], strict=True):
                own.copy_(other)
