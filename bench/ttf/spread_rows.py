"""Tables that are spread over two hosts, beside the simulator's prediction.

Two namespaces of one rank train Wide & Deep over a line of 100 Mb/s, by gloo: ids, rows and
gradients cross it, and the average of the network above. The simulator knows the step without the
line and how many ids are distinct, and predicts the steps a second (spread.yaml). Needs root.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench.arms import Sample
from bench.comparison import ArmRow
from bench.lightcc.lightcc_rows import simulated, torch_ranks
from bench.rows import by_id
from lab.veth import veth_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.arms import Bench
    from bench.comparison import Arms

SCENARIO = Path(__file__).with_name("spread.yaml")
RATE_BPS = 100_000_000
STEPS = 16


def model_text(counted: dict[str, float]) -> str:
    """Give the workload file of a rank's batch."""
    distinct, averaged = int(counted["distinct"]), int(counted["averaged"])
    looked_up = distinct * int(counted["row"])
    return yaml.safe_dump({
        "name": "wide-and-deep", "source": "spread_rank.py", "sample": "a batch of a rank",
        "layers": [{"name": "tables", "tables": {"rows": looked_up}, "lookups": distinct,
                    "looked_up": looked_up},
                   {"name": "top", "tensors": {"weights": averaged}, "forward_flops": averaged,
                    "backward_flops": 2 * averaged}]})


@contextmanager
def training(_: Bench) -> Iterator[Arms]:
    """Steps over the line, and the prediction from the host's step of the same round."""
    with veth_pair() as (a, b):
        for end in (a, b):
            end.congestion("cubic")
            end.shape(RATE_BPS)
        ranks = torch_ranks([a.space, b.space], a.ipv4, "bench.ttf.spread_rank",
                            GLOO_SOCKET_IFNAME=a.device)
        counted: dict[str, Any] = ranks.ask(do="count")[0]

        def rate(*, alone: bool) -> float:
            answers = ranks.ask(do="train", steps=STEPS, alone=alone)
            return STEPS / max(float(answer["seconds"]) for answer in answers)

        def predict() -> Sample:
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder, "model.yaml")
                model.write_text(model_text(counted))
                found = simulated([f"hosts[0].gpus.samples_per_s={rate(alone=True):.4f}",
                                   f"workload.model={model}"], SCENARIO)
            return Sample(found["gloo"])

        yield {"two hosts": lambda: Sample(rate(alone=False)), "simulated": predict}


ROWS = by_id((
    ArmRow("embed-sim", "simulated step of tables over two hosts, 100 Mb/s", training, "simulated",
           unit="steps/s", against=("two hosts",), within=0.15),
))
