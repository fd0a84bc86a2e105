"""Resume trainers as one generation of all their engines: see `milepost.pytorch.RecoverHandler`."""
