"""Errors of the schemas package."""


class SchemaError(ValueError):
    """A table does not fit its schema, or a value in it breaks the table's rules."""


class ShardError(RuntimeError):
    """A shard, partition or manifest on disk is missing, damaged or could not be written."""
