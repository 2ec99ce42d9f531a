"""The speech engine: text and a voice in, PCM out. Importing this package loads no torch.

``shoal.engine.api`` is the port that everything outside uses; ``shoal.engine.service`` builds
the real engine (and loads torch); ``shoal.engine.fake`` is a torch-free stand-in for tests.
"""
