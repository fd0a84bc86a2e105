"""Be the client of a checkpoint service, for training code: it blocks, and goes on through restarts of the service."""

from milepost.service.client.client import Client, connect
from milepost.service.client.committing import Done, Underway
from milepost.service.client.target import Tls
from milepost.service.client.watching import News
from milepost.service.client.weights import Weights

__all__ = ["Client", "Done", "News", "Tls", "Underway", "Weights", "connect"]
