"""`python -m ckpt_tools`, which is how torchrun starts it."""

from .cli import main

if __name__ == "__main__":
    main()
