"""Hold the protocol of the service, ``service.proto``, and what `python -m tests.service.proto.generate` makes of it."""
