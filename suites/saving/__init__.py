"""Saving and loading with `torch.distributed.checkpoint`: models, optimizers, and changes of layout."""
