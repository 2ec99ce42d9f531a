"""The pieces of the CUDA runner: device slot state, staged plans, graphs, and the step program.

Nothing here knows streams, text or time; ``engine/cuda_runner.py`` puts the pieces behind the
runner seam. All of it also runs on the CPU, eagerly and without graphs, which is how it is
tested where there is no GPU.
"""
