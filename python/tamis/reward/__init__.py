"""A reward model in PyTorch: a transformer with a head for sequence classification, behind HTTP.

    python -m tamis.reward --listen unix:/tmp/socket --settings settings.json

A run of tamis starts it for a reward of `kind: model` with a `path`, and asks it for scores. As data flows:

    server      texts of all requests that wait are scored together, request by request is answered
    scoring     texts become tokens by the model's own tokenizer and chat template, tokens a logit, a logit a score

The settings are a JSON object:

    folder              absolute path of the model in Hugging Face layout, its tokenizer beside it
    device              auto (a GPU where there is one), cpu, cuda, cuda:N
    dtype               auto (bf16 on a GPU, f32 on a CPU), f32, bf16, f16
    label               number of the logit that counts: 0
    activation          none, sigmoid, softmax
    max_length          longest text in tokens; null: as long as the model reads
    overlong            how a longer text is treated: unscored, left (its first tokens are cut), right
    add_special_tokens  whether a text without a chat template gets the tokenizer's special tokens: false
    batch_size          most texts that pass through the model together: 16
    chat                whether conversations will come, for which the tokenizer needs a chat template: false
    threads             of the CPU; null: as PyTorch finds them

`POST /v1/score` takes `{"texts": [..]}`, each a text or `{"messages": [{"role", "content"}, ..]}`, and answers
`{"scores": [..]}`, each `{"score", "truncated"}` or `{"error"}`. `GET /v1/info` describes the model. There is no
state between requests. Nothing here is imported before it is needed.
"""
