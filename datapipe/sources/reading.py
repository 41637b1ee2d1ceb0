"""Files read behind the guard: of each, the documents in it, or why there is none.

Owns what one file can do to the others: nothing. A file that cannot be loaded, a reader that raises, hangs or
crashes, a document of a container with which the child is lost, a container that breaks: each is one failed
input in its place. What becomes of a document's media, `ingest` says.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from datapipe.errors import EmptyDocument, FileTooLarge
from datapipe.guard import Failure, Guard, Unguarded
from datapipe.sources import containers, formats, survey
from datapipe.sources.files import SourceFile, read
from datapipe.sources.items import RawDocument
from datapipe.spec import IngestSpec, SourceSpec


@dataclasses.dataclass
class Input:
    """A document as it was read, or why it could not be; one of both is there.

    `folder` is what its links are relative to, unless they start at the root of the source. `loaded` holds
    what its container holds of the files it names: their content ids, and their bytes where they come first.
    """

    uri: str
    content_id: str | None
    document: RawDocument | None = None
    failure: Failure | None = None
    folder: str = ""
    loaded: dict[str, containers.Loaded] = dataclasses.field(default_factory=dict)

    def settle(self, outcome: RawDocument | Failure) -> None:
        """Note what reading it came to."""
        if isinstance(outcome, Failure):
            self.failure = outcome
        else:
            self.document = outcome


class Reading:
    """Reads files of all kinds.

    Args:
        load: returns the bytes of a path from the source's root; raises for what is not there.
    """

    def __init__(
        self, source: SourceSpec, spec: IngestSpec, load: Callable[[str], bytes], guard: Guard | Unguarded
    ) -> None:
        self.source, self.spec, self.load, self.guard = source, spec, load, guard

    def read(self, files: Sequence[SourceFile]) -> list[Input]:
        """Return what became of each document, in order."""
        singles = iter(self._singles([file for file in files if file.format not in formats.CONTAINERS]))
        inputs: list[Input] = []
        for file in files:
            inputs += self._container(file) if file.format in formats.CONTAINERS else [next(singles)]
        return inputs

    def _singles(self, files: list[SourceFile]) -> list[Input]:
        inputs = [Input(file.uri, file.content_id or None, failure=file.failure) for file in files]

        def calls() -> Iterator[tuple[bytes, str, str, int]]:
            for file, given in zip(files, inputs, strict=True):
                if given.failure is not None:
                    continue
                try:
                    if file.size_bytes > self.spec.max_file_bytes:
                        raise FileTooLarge(f"{file.size_bytes} bytes, more than {self.spec.max_file_bytes}")
                    data = self.load(file.uri)
                except Exception as error:  # the border of one bad input: the others go on
                    given.failure = Failure.of(error)
                    continue
                yield data, file.uri, file.format, self.spec.max_file_bytes

        outcomes = iter(self.guard.each(read, calls()))
        for given in inputs:
            if given.failure is None:
                given.settle(next(outcomes))
        return inputs

    def _container(self, file: SourceFile) -> list[Input]:
        """Read a range of a container; go on behind a document with which the child was lost."""
        if file.failure is not None:
            return [Input(file.uri, file.content_id or None, failure=file.failure)]
        inputs: list[Input] = []
        start, stop = file.members or (0, None)
        has_ended = False
        while not has_ended:
            answers = self.guard.collect(
                containers.read,
                survey.container(self.source, file),
                start + len(inputs),
                stop,
                self.spec.max_file_bytes,
                first_limit_s=survey.time_limit_s(file, self.spec),
            )
            has_ended = _take(file, answers, inputs)
        if not inputs and start == 0 and stop is None:
            inputs.append(Input(file.uri, file.content_id))
            inputs[0].settle(Failure.of(EmptyDocument("the file holds no document")))
        return inputs


def _take(file: SourceFile, answers: list[Any], inputs: list[Input]) -> bool:
    """Turn the answers about a range of a container into inputs; return whether the range has ended."""
    is_open = False  # a head waits for its body
    for answer in answers:
        if isinstance(answer, containers.End):
            return True
        if isinstance(answer, containers.Head):
            inputs.append(Input(f"{file.uri}#{answer.name}", answer.content_id, folder=file.uri))
            is_open = True
        elif isinstance(answer, containers.Body):
            inputs[-1].loaded = answer.loaded
            inputs[-1].settle(answer.document)
            is_open = False
        elif is_open:
            inputs[-1].settle(answer)
            is_open = False
        else:  # the container itself breaks here
            inputs.append(Input(file.uri, file.content_id, failure=answer))
            return True
    return False
