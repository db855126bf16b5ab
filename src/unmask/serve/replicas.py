"""The server as a Ray Serve application: replicas that scale with the load, each with its own engine.

    serve run unmask.serve.replicas:application models=kjv,digits max_replicas=4

The result of a request depends only on its seed and the model, so any replica may answer it. Streams pass through Ray
Serve's proxy. Ray Serve counts the active requests per replica and adds a replica if their average exceeds the number
of sequences that an engine processes at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.app import create_app


class Replicas(BaseModel):
    """The arguments of ``serve run`` after the application's name, as name=value."""

    model_config = ConfigDict(extra="forbid")

    models: str = Field("kjv", description="Names, with commas between them.")
    device: str = "cpu"
    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(4, ge=1)
    cpus: float = Field(1, gt=0, description="Cores of a replica.")
    gpus: float = Field(0, ge=0, description="GPUs of a replica; 1 with device=cuda.")
    max_batch: int = Field(Limits().max_batch, ge=1, description="Sequences that a replica works on at a time.")
    max_queue: int = Field(Limits().max_queue, ge=1, description="Requests that wait at a replica.")


class Replica:
    """One engine behind the endpoints of ``unmask serve``."""


def application(arguments: Mapping[str, str]) -> Any:
    """The Ray Serve application; clients must send the token in UNMASK_TOKEN, if it is set."""
    from ray import serve

    asked = Replicas.model_validate(dict(arguments))
    limits = Limits(max_batch=asked.max_batch, max_queue=asked.max_queue)
    token = os.environ.get("UNMASK_TOKEN") or None

    def build() -> FastAPI:
        """Called in each replica: loads the models there and starts the engine with the application."""
        import torch

        torch.set_num_threads(max(1, round(asked.cpus)))
        models = [Served.of(name.strip(), asked.device) for name in asked.models.split(",")]
        return create_app(models, limits, token=token)

    deployment = serve.deployment(
        name="unmask",
        ray_actor_options={"num_cpus": asked.cpus, "num_gpus": asked.gpus},
        max_ongoing_requests=asked.max_batch + asked.max_queue,
        graceful_shutdown_timeout_s=limits.grace_seconds,
        autoscaling_config={
            "min_replicas": asked.min_replicas,
            "max_replicas": asked.max_replicas,
            "target_ongoing_requests": asked.max_batch,
        },
    )
    return deployment(serve.ingress(build)(Replica)).bind()
