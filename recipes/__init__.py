"""The recipes that ship, as package data."""
