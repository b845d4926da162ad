"""Training on several devices and machines by the means of `torch.distributed` and `torchrun`."""

from palm.distributed.group import is_first

__all__ = ["is_first"]
