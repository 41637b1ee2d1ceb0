"""Errors of the jobs package; their messages are what a user of the command reads."""


class JobError(ValueError):
    """A job cannot run, or a run holds no such thing; the message says what to do."""


class SpecError(ValueError):
    """A job spec is wrong: field, value, and what would be right."""
