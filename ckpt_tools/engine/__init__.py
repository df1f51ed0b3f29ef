"""The byte program: plan x source x destination -> moves -> executed, without torch and with bounded memory."""
