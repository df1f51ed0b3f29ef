"""Publishing on the Hub: validated, described, sent in one commit."""
