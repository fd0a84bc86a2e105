"""Hold the protocol of the service, ``service.proto``, and what ``make proto`` makes of it."""
