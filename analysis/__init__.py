"""Looks at attention heads; never changes a model."""
