"""Keep bytes somewhere: one contract, several places."""
