"""Keep the bytes of versions: the newest in the memory of this host, the durable ones in a store."""
