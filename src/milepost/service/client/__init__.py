"""Be the client of a checkpoint service, for training code: it blocks, and goes on through restarts of the service."""
