"""Device kernels in Triton, one family a file, each with a plain-torch reference beside it.

Nothing here knows of models, slots' owners, streams or time. Every launcher takes its outputs and
its workspace as arguments, allocates nothing, never waits for the device, and derives its grid from
shapes alone, so a launch can be captured in a CUDA graph. A row's bits do not depend on its
neighbours: sums over a split dimension have boundaries and an order that follow from the row's own
sizes.
"""
