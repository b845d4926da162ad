"""Training on several devices and machines with `torch.distributed` and `torchrun`."""

from palm.parallel.group import is_main_process

__all__ = ["is_main_process"]
