"""Errors of the datapipe package."""


class DatapipeError(Exception):
    """Anything that goes wrong between raw bytes and token shards."""


class TooManyDropped(DatapipeError, ValueError):
    """A stage would drop a larger fraction of its documents than its spec allows."""


class WorkerLost(DatapipeError, RuntimeError):
    """The process that worked on a partition died again and again, or Ray's own process did."""


class ClusterUnreachable(DatapipeError, RuntimeError):
    """Nothing answers at the address of the Ray cluster to join."""


class StorageNotShared(DatapipeError, RuntimeError):
    """A step's directory is not the same on all machines of the cluster."""


class SourceError(DatapipeError, ValueError):
    """A source folder is missing, nothing in it matches, or a path leads out of it."""


class ReadError(DatapipeError, ValueError):
    """A file cannot be read as a document; it goes to quarantine."""


class NotText(ReadError):
    """The bytes are no text in any known encoding."""


class MalformedMarkup(ReadError):
    """The file breaks the rules of its format."""


class Encrypted(ReadError):
    """The file is behind a password or a licence."""


class EmptyDocument(ReadError):
    """The file holds neither text nor media."""


class FileTooLarge(ReadError):
    """The file is larger than the spec allows."""


class UnsupportedFormat(ReadError):
    """The format is a known one for documents, and not read here."""


class TimeLimitExceeded(DatapipeError, RuntimeError):
    """Reading or decoding took longer than the spec allows; its process was ended."""


class MemoryLimitExceeded(DatapipeError, RuntimeError):
    """Reading or decoding asked for more memory than the spec allows."""


class DecoderCrashed(DatapipeError, RuntimeError):
    """The process that read or decoded ended: a fault of the library, or the system ran out of memory."""


class DecodeError(DatapipeError, ValueError):
    """A picture or video cannot be used; its media row says why."""


class UnknownMedium(DecodeError):
    """The bytes are no picture or video of a format the decoders know."""


class UnsupportedMedium(DecodeError):
    """The format is known and not decoded here, such as SVG."""


class TooManyPixels(DecodeError):
    """The header announces more pixels than the spec allows."""


class MediumTooLong(DecodeError):
    """A video lasts longer, or has more packets, than the spec allows."""


class TruncatedMedium(DecodeError):
    """The file ends before its content does."""


class DamagedMedium(DecodeError):
    """The file breaks the rules of its format."""


class DetectorMissing(DatapipeError, ValueError):
    """A spec asks for a detector whose optional package is not installed."""


class PlanError(DatapipeError, ValueError):
    """The documents described to packing, or the mixture asked for, cannot make a plan."""
