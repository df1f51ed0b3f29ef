"""Tests of ckpt-tools; they mirror the package."""
