"""Attention over a context group: the kernel, the two levels of a scheme, and the autograd function over both."""
