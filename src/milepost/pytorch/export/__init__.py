"""Export models in Hugging Face's format: whole and durable under their name, or not there at all. See docs/exports.md."""
