"""Prompts: published files by name, any file by path, with categories and turns."""
