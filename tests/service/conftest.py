"""Leave nothing behind of what the tests of the service start."""

from tests.service.leftovers import nothing_outlives_the_tests

__all__ = ["nothing_outlives_the_tests"]  # a fixture, found by its name
