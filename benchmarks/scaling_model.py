"""On paper: where training on more devices stops being faster, from computation, bandwidth and latency.

`python benchmarks/scaling_model.py` prints the table of docs/distributed.md. Nothing here is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = 2 / 3  # share of a step's computation; the other third is the forward pass
DEVICES_PER_NODE = 8
DEVICES = (8, 64, 512)


@dataclass(frozen=True)
class Encoder:
    """What of an encoder counts here.

    Args:
        name: for the table.
        layers: their number.
        width: their width.
        words: rows of the word table.
        mfu: share of the peak rate that its matrix products reach.
    """

    name: str
    layers: int
    width: int
    words: int
    mfu: float

    @property
    def layer_parameters(self) -> int:
        """Of all layers together: four projections and two of four times the width."""
        return 12 * self.layers * self.width**2

    @property
    def table_parameters(self) -> int:
        """Of the embeddings, whose gradient is the last to be known."""
        return self.words * self.width

    def step_flops(self, rows: int, length: int) -> float:
        """Of forward and backward: six per parameter and token, and attention's share."""
        tokens = rows * length
        return 6 * tokens * (self.layer_parameters + 2 * self.layers * length * self.width)


@dataclass(frozen=True)
class Network:
    """How gradients travel.

    Args:
        name: for the table.
        bandwidth: bytes a second that a device sends while all do, once a ring spans several machines.
        latency: seconds of one step of the ring.
    """

    name: str
    bandwidth: float
    latency: float


PEAK = 989e12  # FLOP/s of an H100 in bf16, dense
WITHIN_NODE = Network("NVLink", 300e9, 3e-6)
NETWORKS = (Network("400 Gb/s a device", 45e9, 6e-6), Network("100 Gb/s a machine", 1.4e9, 20e-6))
ENCODERS = (
    Encoder("BERT-base", 12, 768, 30522, 0.40),
    Encoder("BERT-large", 24, 1024, 30522, 0.45),
)


def all_reduce_seconds(num_bytes: float, devices: int, network: Network) -> float:
    """A reduce-scatter and an all-gather, by a ring in each machine and one across the machines.

    Within a machine every device sends 7/8 of the gradient twice; across, its eighth of it.
    Latency is that of a tree across the machines, which NCCL takes where a ring would wait too long.
    """
    inner = 2 * (1 - 1 / DEVICES_PER_NODE) * num_bytes / WITHIN_NODE.bandwidth
    inner += 2 * (DEVICES_PER_NODE - 1) * WITHIN_NODE.latency
    nodes = devices // DEVICES_PER_NODE
    if nodes == 1:
        return inner
    part = num_bytes / DEVICES_PER_NODE
    outer = 2 * (1 - 1 / nodes) * part / network.bandwidth
    return inner + outer + 2 * (nodes - 1).bit_length() * network.latency


def efficiency(
    encoder: Encoder, rows: int, length: int, devices: int, network: Network, gradient_bytes: int
) -> float:
    """How many times faster than one device, divided by the number of devices.

    Gradients of the layers travel while backward computes; those of the embeddings come last, and
    everybody waits for them, as for whatever of the others has not arrived by then.
    """
    computing = encoder.step_flops(rows, length) / (PEAK * encoder.mfu)
    layers = all_reduce_seconds(gradient_bytes * encoder.layer_parameters, devices, network)
    table = all_reduce_seconds(gradient_bytes * encoder.table_parameters, devices, network)
    waiting = max(0.0, layers - BACKWARD * computing) + table
    return computing / (computing + waiting)


def table() -> str:
    """Efficiencies as a Markdown table."""
    lines = [
        "| encoder | rows × tokens a device | gradients | network | "
        + " | ".join(f"{devices} devices" for devices in DEVICES)
        + " |",
        "|---|---|---|---|" + "---|" * len(DEVICES),
    ]
    for encoder in ENCODERS:
        for rows, length in ((32, 128), (32, 384)):
            for name, size in (("fp32", 4), ("bf16", 2)):
                for network in NETWORKS:
                    values = [efficiency(encoder, rows, length, n, network, size) for n in DEVICES]
                    cells = " | ".join(f"{value:.0%}".replace("%", " %") for value in values)
                    lines.append(
                        f"| {encoder.name} | {rows} × {length} | {name} | {network.name} | {cells} |"
                    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
