"""What a finished run looks like: terminal, JSON, HTML, comparison with another run."""
