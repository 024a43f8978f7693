"""Headrace beside other frameworks; nothing here is imported by the rest."""
