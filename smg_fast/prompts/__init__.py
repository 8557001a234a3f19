"""From a request's messages or text to token ids, reading nothing but the model's own directory."""
