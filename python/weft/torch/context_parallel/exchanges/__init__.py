"""Moves of tensors between ranks, and between layouts."""
