"""The checks of `verify-draft`, one module per question; each puts rows and findings into the Pair."""
