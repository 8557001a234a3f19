# ruff: noqa: N818 - EngineUnavailable says what is the matter; EngineUnavailableError would say it twice.
"""What can go wrong between the gateway and its engines."""

from __future__ import annotations


class EngineError(Exception):
    """A generation that an engine does not deliver. The text is fit for the client."""


class EngineUnavailable(EngineError):
    """No engine is ready, or the engine died with the generation in flight."""


class EngineBusy(EngineError):
    """The engine did not take the request within the bound; nothing of it was sent."""


class EngineFailed(EngineError):
    """The engine failed the generation, or said something that cannot be read."""


class AddressError(ValueError):
    """An address that no socket can be bound to. The text tells the operator what is wrong with it."""


class BindError(Exception):
    """A worker's sockets cannot be bound where they should be. The text tells the operator what to mend."""
