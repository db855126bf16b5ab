"""Which settings of ``unmask train`` win at the sizes that it chooses on a CPU: the table of docs/results/training.md.

    python -m benchmarks.training_defaults FOLDER [kjv|sotu]

Every run has one thread, the same batches, masks and initial weights, and the same held-out masks, so two settings
differ by their settings alone. Results go to FOLDER/results.jsonl as they come; what is there is not run again.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from unmask.data.corpora import prepared
from unmask.training.config import TrainConfig
from unmask.training.loop import train

COMMON: dict[str, Any] = {
    "threads": 1,
    "validate_sequences": 400,
    "preview": False,
    "tensorboard": False,
    "validate_every": 10**6,
    "save_every": 10**6,
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "tiny", "batch": 32, "steps": 400},
    "mini": {"preset": "mini", "batch": 16, "steps": 300},
}
OLD: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-3, "decay": "constant", "convolution": 0}
BEST: dict[str, Any] = {"optimizer": "muon", "learning_rate": 3e-3, "decay": "cosine", "convolution": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "AdamW 1e-3": OLD,
    "Muon 3e-3, cosine, convolution 3": BEST,
    "AdamW 3e-3, cosine, convolution 3": BEST | {"optimizer": "adamw"},
    "Muon 3e-3, cosine": BEST | {"convolution": 0},
    "Muon 3e-3, cosine, convolution 3, dropout 0": BEST | {"dropout": 0.0},
    "Muon 3e-3, cosine, convolution 3, by count": BEST | {"objective": "count"},
    "Muon 6e-3, cosine, convolution 3": BEST | {"learning_rate": 6e-3},
    "Muon 1e-3, cosine, convolution 3": BEST | {"learning_rate": 1e-3},
    "AdamW 3e-3, cosine": OLD | {"learning_rate": 3e-3, "decay": "cosine"},
}


def main(folder: Path, corpora: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / f"results-{'-'.join(corpora)}.jsonl"
    done = {tuple(json.loads(line)["run"]) for line in results.read_text().splitlines()} if results.exists() else set()
    for name, setting in SETTINGS.items():
        for size, sizes in SIZES.items():
            for corpus in corpora:
                if (corpus, size, name) not in done:
                    record = {"run": [corpus, size, name], **measured(folder, corpus, sizes | setting)}
                    with results.open("a") as file:
                        file.write(json.dumps(record) + "\n")


def measured(folder: Path, corpus: str, setting: dict[str, Any]) -> dict[str, float]:
    """The held-out bound of a run, in nats per token, and the processor's seconds per step."""
    out = folder / f"run-{corpus}"
    shutil.rmtree(out, ignore_errors=True)
    data = prepared(corpus, length=128)
    before = time.process_time()
    train(TrainConfig(data=str(data), out=str(out), **(COMMON | setting)))
    seconds = time.process_time() - before
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "validation"][-1]
    return {"nats": last["nats_per_token"], "error": last["error"], "seconds_per_step": seconds / setting["steps"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["kjv", "sotu"])
