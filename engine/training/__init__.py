"""How the built-in voice was made: teacher speech, codec, codes, DualAR, export, evaluation.

Each step is a command of ``python -m shoal.engine.training`` that stops when its minutes are over
and goes on from a saved state the next time. Nothing that serves imports this package.
"""
