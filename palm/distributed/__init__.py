"""Training on several devices and machines with `torch.distributed` and `torchrun`."""

from palm.distributed.group import is_first

__all__ = ["is_first"]
