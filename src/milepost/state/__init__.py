"""Say what is saved: trees, their leaves, and how live objects take them back.

Import from the modules: this package pulls in nothing.
"""
