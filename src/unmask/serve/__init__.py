"""Serving: continuous batching of plans, an API that existing clients speak, and a page.

    limits.py      what a server accepts and holds
    work.py        what a request asks: its canvas, its plans, how its tokens are drawn
    seats.py       KV caches for sequences that come and go
    lane.py        live sequences that share network calls
    aside.py       samplers with a loop of their own, one network call at a time
    job.py         a request in the engine, and what is told about it
    forecast.py    how long it waits and takes
    engine.py      the thread that admits, calls, tells and forgets
    metrics.py     what is counted, and /metrics
    schemas.py     what requests and errors look like
    request.py     from a request's names to work
    session.py     a request between the event loop and the engine's thread
    transcript.py  /v1/unmask: a sequence as text and JSON
    openai.py      /v1/completions
    gate.py        the token, the body's size, the headers
    app.py         the endpoints
    command.py     ``unmask serve``
"""
