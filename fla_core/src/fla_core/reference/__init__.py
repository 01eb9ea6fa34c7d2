"""Reference mathematics: token recurrences and chunked forms in plain PyTorch."""
