"""Serving: continuous batching, an API that existing clients speak, and a page.

engine/limits.py     what a server accepts and holds
engine/work.py       what a request asks: its canvas, its sampler, how its tokens are picked
engine/job.py        a request in the engine, and what is told about it
engine/batch.py      live sequences that share network calls
engine/shares.py     whose sequences get the next place, and whose the next call
engine/forecast.py   how long a request waits and takes
engine/engine.py     the thread that admits, calls, tells and forgets
http/schemas.py      what requests and errors look like
http/request.py      from a request's names to work
http/exchange.py     a request between the event loop and the engine's thread
http/transcript.py   /v1/unmask: a sequence as text and JSON
http/openai.py       /v1/completions
http/chat.py         /v1/chat/completions, as a completion
http/connection.py   how long a connection may be silent
http/middleware.py   the token, the body's size, the headers
http/metrics.py      /metrics
http/app.py          the endpoints
web/                 the page
"""
