"""A learner whose model is held by a server of Tinker's API (docs/learners.md). It needs only Python's standard
library.

    python -m tamis.tinker --base-model Qwen/Qwen3-8B --url http://127.0.0.1:8000

One side speaks `tamis-learner/1` (docs/learner-protocol.md), the other Tinker's API. As data flows through it:

    learner     the calls of the page
    columns     columns and waves of the page, as arrays
    training    one model at the server: passes, steps, weights
    reduction   what a server divides derivatives by, and its inverse
    probe       measures that divisor at the start, on a scratch model
    sampling    open samples
    checkpoint  the folder of a checkpoint whose weights stay at the server
    api         requests, retries, futures that are polled, the session's heartbeat
    protobuf    the bodies that are not JSON
"""
