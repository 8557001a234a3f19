"""What can be wrong with a prompt."""

from __future__ import annotations


class PromptError(ValueError):
    """The messages of a request cannot become a prompt: the client's fault.

    ``param`` is the path of the offending value in the request (``messages[2].content[0]``), where one
    value is at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TemplateError(PromptError):
    """The chat template refused the messages (its own words, where it has any) or failed on them."""


class ModelDirectoryError(ValueError):
    """A model directory, or a file of it, cannot be used; the message names the path."""
