"""Where tensor bytes lie in files: Hugging Face folders and Megatron torch-dist directories."""
