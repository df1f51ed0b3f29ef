"""Publishing to and reading from a Hub: a local server that the real huggingface_hub client talks to."""
