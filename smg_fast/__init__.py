"""smg-fast: an OpenAI-compatible gateway that speaks the inference engine's own ZeroMQ wire."""
