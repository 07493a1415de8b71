"""The errors a user of the engine may cause, each saying what was wrong and what would be right."""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class ModelError(EngineError, ValueError):
    """A model that cannot be loaded or run; the message names the file, tensor or field."""


class RequestError(EngineError, ValueError):
    """A request that was refused at submission; no other request is disturbed."""
