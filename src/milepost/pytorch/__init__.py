"""Teach milepost the kinds of leaf and generator that PyTorch brings. Loaded only once ``torch`` is imported."""
