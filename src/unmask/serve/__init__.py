"""Serving: continuous batching, an API that existing clients speak, and a web page.

engine/limits.py     the limits of a server
engine/work.py       a request with its names resolved: canvas, sampler, and how tokens are drawn
engine/job.py        a request in the engine, and the events about it
engine/batch.py      active sequences that share network calls
engine/shares.py     fairness: who gets the next place, and who the next call
engine/forecast.py   how long a request waits and takes
engine/engine.py     the thread that admits requests and calls the networks
http/schemas.py      the schemas of requests and errors
http/request.py      from a request to its work
http/exchange.py     a request between the event loop and the engine's thread
http/transcript.py   /v1/unmask: a sequence as text and JSON
http/openai.py       /v1/completions
http/chat.py         /v1/chat/completions, as a completion
http/connection.py   timeouts of connections
http/middleware.py   tokens, body sizes, headers
http/metrics.py      /metrics
http/app.py          the endpoints
web/                 the page
"""
