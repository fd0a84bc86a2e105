"""Turn state into bytes and name bytes by their digests. Import from the modules: this package pulls in nothing."""
