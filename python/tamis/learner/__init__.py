"""A learner in PyTorch behind the wire `tamis-learner/1` (docs/learner-protocol.md).

    python -m tamis.learner --listen 127.0.0.1:0

The controller (tamis) computes objectives and sends one derivative per token. This package runs a decoder of
transformers forward and backward and steps its optimizer. As data flows through it:

    connections HTTP on a socket, keys, ending on a signal; also for a reward model
    session     incarnations and sequence numbers: each call carried out once
    messages    bodies to settings and columns, answers to bodies, errors as exceptions
    server      a session of tensors
    protocol    columns to tensors and waves
    learner     the calls of the page
    ranks       several processes as one learner: calls to all, heartbeats
    sharding    weights shared out over ranks (FSDP2)
    device      the device of all computation, and the meaning of its errors
    packing     a wave becomes one row of tokens without padding
    loading     folders in Hugging Face layout to networks, placed and checked
    model       a decoder with its head, forward over waves; which attention it may use
    head        from hidden states to log-probabilities, scaled and capped as in the model
    vision      images of a prompt, and the features that a vision tower makes of them
    attention   attention within each sequence of a pack
    logprob     log-probabilities and entropies from hidden states, never with all logits at once
    weights     trained weights in f32 and their gradients, whatever type the decoder computes in
    optimizer   AdamW, clipping, skipped steps
    moments     its moments: in f32 or 8 bits, on the device or the host
    critic      a decoder with a value head
    lora        adapters
    four_bits   weights below an adapter in 4 bits
    checkpoint  folders in Hugging Face layout with the optimizer's state
    transfer    weights to servers over NCCL, from this process's memory
    samples     open samples: begun, drawn, reported, aborted
    generate    samples as rows of a cache (`row_cache`)
    continuous  samples by transformers' continuous batching
    tiles       passes whose numbers do not depend on what is computed together
    drawing     a token from logits, at a keyed number (`random_keys`)

The `options` of `open`:

    device             auto (a GPU if there is one), cpu, cuda, cuda:N
    dtype              type of all passes: auto (bf16 on a GPU, f32 on a CPU), f32, bf16
    attention          auto, varlen, sequences, or a name of transformers: sdpa, flash_attention_2, ...
    logprob_chunk      tokens whose logits exist at once; null: as many as take 512 MB on a GPU, 8 MB on a CPU
    offload_reference  whether the reference waits in the host's memory between passes: false
    moments            f32 or 8bit: how AdamW's moments are held
    offload_moments    whether they are in the host's memory: false
    freeze_vision      whether the vision tower of a model that sees images is frozen: false
    continuous_batching  whether samples use transformers' continuous batching, on a GPU with flash-attention: false
    exact              whether numbers do not depend on what is computed together (`tiles`): false
    threads            of the CPU; null: PyTorch's default
    lora               {rank, alpha, targets: null (every linear layer), seed: 0, dropout: 0, base: dtype or nf4}; null:
                       all is trained

One process on one device, or several under torchrun. Nothing is imported before it is needed.
"""
