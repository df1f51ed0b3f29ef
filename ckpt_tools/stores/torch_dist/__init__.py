"""Megatron's on-disk format: DCP metadata over `.distcp` files of `torch.save` frames, read and written without torch."""
