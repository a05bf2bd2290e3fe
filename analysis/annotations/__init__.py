"""Headwise."""
