"""Move the bytes of a version: one contract for memory, files, stores, sockets, streams and RDMA."""
