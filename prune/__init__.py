"""Decides which heads go, cuts them, measures again, writes."""
