"""Specs of the data stages: what a prepare job's fields mean, their units, and why their defaults.

Owns validation of these fields. Imports no Ray and no torch, so a spec can be checked anywhere.
"""

from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from schemas import document, shard


class SourceSpec(BaseModel, frozen=True, extra="forbid"):
    """A folder of raw files; the reader is chosen by each file's name and first bytes."""

    path: str = Field(min_length=1)
    """Folder to read, local or `s3://`; `~` and environment variables are expanded."""
    collection: str = ""
    """Name of the collection in every table; empty takes the folder's own name."""
    include: tuple[str, ...] = ("**",)
    """Glob patterns of files to read, relative to `path`; pictures that pages embed need not match. Files of
    unknown formats are passed over and counted, unless a pattern asks for them by more than `*`."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of files to leave out."""
    license: str | None = None
    """Licence noted on every document."""
    standalone_media: bool = False
    """Whether pictures and videos that no page embeds become documents of their own. Off by default, since
    manuals ship many icons."""

    _path_is_a_place = field_validator("path")(shard.check_address)


class VideoSpec(BaseModel, frozen=True, extra="forbid"):
    """Frames, shot cuts and words of videos."""

    sampling: Literal["fixed", "change"] = "fixed"
    """`fixed` takes frames at a rate, as M3 does; `change` takes one of each shot, and more where the picture
    changes, so that a long video of few pictures costs few frames and none is missed."""
    max_frames: int = Field(default=64, gt=1)
    """Frames sampled from one video at most."""
    frames_per_second: float = Field(default=1.0, gt=0)
    """Sampling rate until `max_frames` is reached; longer videos are sampled evenly. Default: that of M3.
    With `change`, the densest frames of one shot."""
    max_frame_side: int = Field(default=672, gt=0)
    """Sampled frames are shrunk to this longer side, in pixels. Default: M3's picture size."""
    max_duration_s: float = Field(default=6 * 3600.0, gt=0)
    """Longer videos are refused. Default: no film is longer; a broken clock is."""
    max_packets: int = Field(default=2_000_000, gt=0)
    """Videos with more packets are refused. Default: over six hours at 90 frames a second."""
    embedded_captions: bool = True
    """Whether the subtitles inside a video are its words where no caption file is beside it."""
    speech_model: str | None = None
    """Folder of a Whisper model for CTranslate2; with it, a video without captions is transcribed (needs the
    `speech` extra). Empty transcribes nothing: speech costs more than all other preparation."""
    speech_limit_s: float = Field(default=3600.0, gt=0)
    """Longest time for transcribing one video. Default: a long film on a slow core with a small model."""
    decode_threads: int = Field(default=1, gt=0)
    """Threads that decode one video. Default: Ray already gives every core a task. Results do not depend on
    it."""


class IngestSpec(BaseModel, frozen=True, extra="forbid"):
    """Limits under which raw bytes become documents and media."""

    documents_per_partition: int = Field(default=64, gt=0)
    """Documents in one partition, the unit of work and of resume; a container is cut to fit."""
    bytes_per_partition: int = Field(default=512 * 1024**2, gt=0)
    """Bytes of files in one partition, after which the next begins: a worker holds the files of a partition
    about three times, as they are and on their way into tables. Default: the largest allowed file fits, which
    would have a partition of its own anyway. What pages embed counts with `standalone_media` only."""
    max_file_bytes: int = Field(default=512 * 1024**2, gt=0)
    """Larger files go to quarantine, unread. Of a container, such as a web archive, each document counts."""
    time_limit_s: float = Field(default=120.0, gt=0)
    """Longest processor time for reading one document or decoding one picture or video, for each 16 MiB of it
    begun; then it is given up. It also bounds going through a container. Time spent waiting counts a quarter.
    Whether the limit is met depends on the machine, so the default is for what would never end: a core
    decodes half an hour of 720p video in it."""
    memory_limit_bytes: int = Field(default=4 * 1024**3, ge=256 * 1024**2)
    """Memory that reading one document or decoding one medium may take. Default: several copies of the
    largest allowed picture, of 16-bit RGBA; one worker may hold so much beside its own partition."""
    max_image_pixels: int = Field(default=89_478_485, gt=0, le=178_956_970)
    """Pictures and videos with more pixels in a frame are refused before decoding. Default: Pillow's warning
    limit (a quarter GiB of pixels); the largest value is its hard stop."""
    video: VideoSpec = VideoSpec()
    """Which frames of a video are taken, and its limits."""


QualityMeasure = Literal[
    "gopher_too_few_words",
    "gopher_too_many_words",
    "gopher_mean_word_length",
    "gopher_hashes",
    "gopher_ellipses",
    "gopher_alphabetic_words",
    "gopher_bullet_lines",
    "gopher_ellipsis_lines",
    "gopher_stop_words",
    "gopher_duplicate_lines",
    "gopher_duplicate_line_characters",
    "gopher_duplicate_paragraphs",
    "gopher_duplicate_paragraph_characters",
    "gopher_top_2_gram",
    "gopher_top_3_gram",
    "gopher_top_4_gram",
    "gopher_duplicate_5_grams",
    "gopher_duplicate_6_grams",
    "gopher_duplicate_7_grams",
    "gopher_duplicate_8_grams",
    "gopher_duplicate_9_grams",
    "gopher_duplicate_10_grams",
    "c4_lorem_ipsum",
    "c4_curly_bracket",
    "c4_sentences",
    "c4_javascript",
    "c4_policy",
    "fineweb_punctuated_lines",
    "fineweb_short_lines",
    "fineweb_duplicate_line_characters",
]


class CleanSpec(BaseModel, frozen=True, extra="forbid"):
    """Text repair, language, and documents that carry nothing."""

    languages: tuple[str, ...] = ()
    """Languages to keep (BCP 47 primary tags); empty keeps all. Short documents are always kept."""
    min_lang_prob: float = Field(default=0.5, ge=0, le=1)
    """Below it the detector is not believed: the declared language stays, and no document leaves."""
    min_lang_words: int = Field(default=20, gt=0)
    """Documents with fewer words of prose are too short to tell; they keep the declared language."""
    min_words: int = Field(default=10, ge=0)
    """Documents with fewer words and no picture or video are dropped as `too_short`."""
    rules: tuple[Literal["gopher_quality", "gopher_repetition", "c4", "fineweb"], ...] = (
        "gopher_quality",
        "gopher_repetition",
        "c4",
        "fineweb",
    )
    """Published rules for web text, see `stages/quality_rules.py`; what fails one is dropped by its measure's
    name. Documents that a rule was not made for are not judged by it."""
    ignored_measures: tuple[QualityMeasure, ...] = (
        "gopher_too_few_words",
        "gopher_too_many_words",
        "gopher_alphabetic_words",
        "gopher_bullet_lines",
        "gopher_ellipsis_lines",
        "gopher_stop_words",
        "gopher_duplicate_lines",
        "gopher_duplicate_line_characters",
        "gopher_duplicate_paragraphs",
        "gopher_duplicate_paragraph_characters",
        "gopher_top_2_gram",
        "gopher_top_3_gram",
        "gopher_top_4_gram",
        "gopher_duplicate_5_grams",
        "gopher_duplicate_6_grams",
        "gopher_duplicate_7_grams",
        "gopher_duplicate_8_grams",
        "gopher_duplicate_9_grams",
        "gopher_duplicate_10_grams",
        "c4_sentences",
        "c4_curly_bracket",
        "c4_javascript",
        "fineweb_punctuated_lines",
        "fineweb_short_lines",
        "fineweb_duplicate_line_characters",
    )
    """Measures of these rules that are not judged. Default: all that drop good pages of manuals, whose steps,
    menus and parameters repeat themselves, and the limit of 100,000 words, which takes out the books that a
    long context is for. Set `[]` for a crawl of the web, as the papers do."""
    max_drop_frac: float = Field(default=0.9, ge=0, le=1)
    """The run stops when this stage would drop a larger fraction: that is a wrong setting, not bad data."""


class DedupeMediaSpec(BaseModel, frozen=True, extra="forbid"):
    """Pictures and videos that are copies of one."""

    max_distance: int = Field(default=10, ge=0, le=15)
    """Bits of 64 in which perceptual hashes of candidates may differ. Default: copies at JPEG quality 30 or
    a third of the size are within 10; more only makes more candidates, since pixels decide."""
    max_candidates: int = Field(default=16, gt=0)
    """Pictures or videos with which each one is compared at most, the nearest by hash: it bounds the work
    where very many look alike, such as slides of one template."""
    min_overlap: float = Field(default=0.8, gt=0.5, le=1)
    """Share of the longer of two videos that both must show. Default: a trimmed copy is found, and two
    episodes with the same opening stay apart."""
    min_matched_frames: float = Field(default=0.8, gt=0, le=1)
    """Share of the compared frames in which two videos must agree; the rest may be captions or a logo laid
    over one of them for a while."""
    pairs_per_task: int = Field(default=256, gt=0)
    """Pairs compared by one task, the unit of work and of resume."""


class DedupeTextSpec(BaseModel, frozen=True, extra="forbid"):
    """Exact and near-duplicate documents by their text and media together."""

    shingle_words: int = Field(default=5, gt=0)
    """Words in a shingle. A shorter document is one shingle."""
    min_similarity: float = Field(default=0.8, gt=0, le=1)
    """Weighted Jaccard similarity of shingles and media from which two documents are near-duplicates.
    Candidates are compared exactly, so nothing below it merges. Default: what dedupe of web text aims at."""
    media_words: int = Field(default=10, ge=0)
    """Shingles a picture or video weighs as much as; 0 compares text alone. With 10, pages of 300 words merge
    that differ in three advertisements, and one other picture keeps equal texts of up to 80 words apart."""
    min_text_similarity: float = Field(default=0.6, ge=0, le=1)
    """Jaccard similarity the shingles must have by themselves where equal media make up for text; at most
    `min_similarity` counts."""
    num_permutations: int = Field(default=125, gt=0)
    """Length of a MinHash signature, which finds candidates only."""
    num_bands: int = Field(default=25, gt=0, lt=255)
    """LSH bands. 25 bands of 5 miss one pair in 20,000 at similarity 0.8, and compare 1 in 17 at 0.3. In 26
    languages of one manual 32 bands of 4 found no more, and 20 of 6 missed some that media make similar."""
    seed: int = Field(default=1, ge=0)
    """Seed of the hash permutations."""
    max_drop_frac: float = Field(default=0.9, ge=0, le=1)
    """As in `clean`."""

    @model_validator(mode="after")
    def _bands_divide(self) -> Self:
        if self.num_permutations % self.num_bands:
            raise ValueError(
                f"num_bands: {self.num_bands} does not divide num_permutations {self.num_permutations}"
            )
        return self

    @model_validator(mode="after")
    def _bands_find_similar_pairs(self) -> Self:
        rows = self.num_permutations // self.num_bands
        found = 1 - (1 - self.min_similarity**rows) ** self.num_bands
        if found < 0.9:
            raise ValueError(
                f"num_bands: {self.num_bands} bands of {rows} find only {found:.0%} of the pairs at "
                f"min_similarity {self.min_similarity}; take more bands of fewer permutations"
            )
        return self


class MaskTextSpec(BaseModel, frozen=True, extra="forbid"):
    """Personal data and secrets in text, and texts that are context only."""

    detectors: tuple[Literal["email", "phone", "ip", "card", "iban", "secret"], ...] = (
        "email",
        "phone",
        "ip",
        "card",
        "iban",
        "secret",
    )
    """Which detectors run."""
    action: Literal["no_loss", "drop"] = "no_loss"
    """What happens to a hit. Default keeps it as context and trains nothing on it."""
    roles: dict[str, Literal["no_loss", "drop"]] = {"tool_result": "no_loss"}
    """What happens to whole texts by role. Default: what tools print in an agent's session is not what the
    model should learn to say."""

    @field_validator("roles")
    @classmethod
    def _are_roles(cls, roles: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(roles) - set(document.ROLES)):
            raise ValueError(f"{unknown} are no roles; there are {', '.join(document.ROLES)}")
        return roles


class MaskVideoSpec(BaseModel, frozen=True, extra="forbid"):
    """Stretches of video that show nothing."""

    min_black_s: float = Field(default=1.0, gt=0)
    """Shortest black stretch to drop: shorter ones are the pauses between shots."""
    min_static_s: float = Field(default=5.0, gt=0)
    """Shortest stretch in which nothing moves. Its first frame stays: a slide is content, once."""
    min_logo_s: float = Field(default=2.0, gt=0)
    """Shortest stretch of an almost empty picture, such as a logo on one colour, at either end of a video."""
    max_logo_area_frac: float = Field(default=0.15, gt=0, lt=1)
    """Of the picture, at most, that the logo's box covers. Default: a title with text covers more."""


class MaskRepeatsSpec(BaseModel, frozen=True, extra="forbid"):
    """Lines of a site's pages, paragraphs that come again, and sentences from a template."""

    min_documents: int = Field(default=10, gt=1)
    """Documents of a site, or of a folder in it, that a line or template must stand in; sites with fewer have
    none."""
    min_boilerplate_frac: float = Field(default=0.2, gt=0, le=1)
    """And the fraction of its documents, for lines at the edges of pages."""
    min_template_frac: float = Field(default=0.02, gt=0, le=1)
    """The same for templates."""
    min_paragraph_words: int = Field(default=20, gt=0)
    """Paragraphs with fewer words may come again."""
    boilerplate_action: Literal["no_loss", "drop"] = "drop"
    """What happens to the lines of a site: they say nothing of the page."""
    paragraph_action: Literal["no_loss", "drop"] = "no_loss"
    """What happens to paragraphs that come again, but the first. Default keeps them: what follows may need
    them."""
    template_action: Literal["no_loss", "drop"] = "no_loss"
    """What happens to sentences from a template, but in the first document."""


class MaskMediaSpec(BaseModel, frozen=True, extra="forbid"):
    """Pictures that carry no content of their document."""

    max_documents: int = Field(default=10, gt=0)
    """A picture in more documents of the corpus is repeated: it leaves as `repeated_image` where it is an
    icon or the furniture of a site. Default: OBELICS' limit for one URL."""
    min_content_side: int = Field(default=100, ge=0)
    """Repeated pictures with a shorter side, in pixels, are icons. Default: in the GIMP
    manual, icons have up to 48 pixels and photos 113 and more."""
    max_site_frac: float = Field(default=0.25, gt=0, le=1)
    """Larger repeated pictures on more than this share of a site's pages are its furniture."""
    max_content_documents: int = Field(default=100, gt=0)
    """All other repeated pictures stay in at most so many documents."""
    min_side: int = Field(default=32, ge=0)
    """Pictures with a shorter side, in pixels, are dropped as `too_small`."""
    max_aspect: float = Field(default=8.0, ge=1)
    """Pictures with a longer side of more than this times the shorter are dropped as `extreme_aspect`."""


class ContaminationSpec(BaseModel, frozen=True, extra="forbid"):
    """Texts and pictures of benchmarks, which training data must not hold."""

    sources: tuple[SourceSpec, ...] = Field(min_length=1)
    """Folders of the benchmarks, in any format a corpus may have."""
    ngram_words: int = Field(default=13, gt=1)
    """Words in a row that tell a benchmark's text. Default: GPT-3's (arXiv 2005.14165, appendix C)."""
    min_ngram_words: int = Field(default=8, gt=1)
    """Benchmark texts shorter than `ngram_words` are looked for whole, down to this length; shorter ones are
    too common to tell. Default: GPT-3's."""
    max_hash_distance: int = Field(default=4, ge=0, le=16)
    """Bits of 64 in which the perceptual hashes of a picture and a benchmark's may differ."""
    action: Literal["drop", "no_loss"] = "drop"
    """What happens to a hit."""
    max_document_frac: float = Field(default=0.5, gt=0, le=1)
    """Documents with a larger fraction of their words in hits are dropped as `contamination`."""
    max_drop_frac: float = Field(default=0.9, ge=0, le=1)
    """As in `clean`."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_ngram_words > self.ngram_words:
            raise ValueError(
                f"min_ngram_words: {self.min_ngram_words} is above ngram_words {self.ngram_words}"
            )
        return self


class MaskRegionsSpec(BaseModel, frozen=True, extra="forbid"):
    """Faces and lines of text in pictures."""

    detectors: tuple[Literal["faces", "text"], ...] = Field(default=("faces",), min_length=1)
    """What to look for; each needs an optional package, which the error names."""
    action: Literal["drop", "no_loss"] = "drop"
    """`drop` paints the region over when the picture is tokenised; `no_loss` only notes it."""
    max_side: int = Field(default=1024, ge=64)
    """Pictures are shrunk to this longer side, in pixels, before they are looked at."""


class InterleaveSpec(BaseModel, frozen=True, extra="forbid"):
    """The training stream of a document: masks applied, pictures where the page has them."""

    max_images: int = Field(default=64, gt=0)
    """Pictures kept per document, in order; later ones leave. Videos do not count: ingest limits frames."""
    keep_alt: bool = True
    """Whether a picture's alternative text stays where it has no caption."""
    max_drop_frac: float = Field(default=0.9, ge=0, le=1)
    """As in `clean`."""


class TokenizeSpec(BaseModel, frozen=True, extra="forbid"):
    """Text to ids, pictures to model-sized bytes and placeholder ids."""

    tokenizer: str | None = None
    """A `tokenizer.json` to use; empty trains a byte-level BPE on the corpus."""
    vocab_size: int = Field(default=4096, ge=320)
    """Size of the trained vocabulary, special tokens included; a small corpus may not yield as many."""
    patch_size: int = Field(default=14, gt=0)
    """Side of a vision patch in pixels; must be the model's."""
    merge_size: int = Field(default=2, gt=0)
    """Patches merged to one token, per side; must be the model's."""
    temporal_patch_size: int = Field(default=2, gt=0)
    """Frames in one temporal patch; must be the model's."""
    max_segment_patches: int = Field(default=4, gt=0)
    """Temporal patches that attend to each other (M3: 4, that is 8 frames)."""
    min_pixels: int = Field(default=3136, gt=0)
    """Pictures are enlarged to at least this area."""
    max_pixels: int = Field(default=451_584, gt=0)
    """Pictures are shrunk to at most this area (M3: 576 tokens)."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.tokenizer is not None and self.vocab_size != type(self).model_fields["vocab_size"].default:
            raise ValueError("vocab_size: has no effect when a tokenizer is given; leave one of them out")
        if self.max_pixels < max(self.min_pixels, (self.patch_size * self.merge_size) ** 2):
            raise ValueError(f"max_pixels: {self.max_pixels} is below min_pixels or below one merged patch")
        return self


class PackSpec(BaseModel, frozen=True, extra="forbid"):
    """Token spans to training sequences."""

    context_length: int = Field(default=1024, ge=64)
    """Tokens in a sequence."""
    num_sequences: int | None = Field(default=None, gt=0)
    """Sequences to plan: epochs follow each other, each in a new order, until there are as many.
    Empty is one epoch."""
    mixture: dict[str, float] = {}
    """Target share of tokens by stratum; empty keeps the corpus' own. Strata left out get what remains, in
    proportion. An epoch keeps its size: it repeats or thins documents of a stratum, each epoch other ones."""
    window: int = Field(default=1024, gt=0)
    """Spans looked at together by best-fit packing. A larger window fills sequences better and mixes less."""
    min_span_tokens: int = Field(default=16, gt=1)
    """Shorter rests of a split document are left out and counted."""
    held_out_frac: float = Field(default=0.02, ge=0, lt=0.5)
    """Fraction of documents (by hash of doc_id) kept out of the plan and packed into `heldout`."""
    seed: int = 1
    """Seed of the order of documents, and of which ones the mixture repeats and thins."""

    @model_validator(mode="after")
    def _spans_fit(self) -> Self:
        if self.min_span_tokens > self.context_length:
            raise ValueError(
                f"min_span_tokens: {self.min_span_tokens} is above context_length {self.context_length}"
            )
        return self

    @model_validator(mode="after")
    def _mixture_is_shares(self) -> Self:
        if any(share < 0 for share in self.mixture.values()) or sum(self.mixture.values()) > 1 + 1e-9:
            raise ValueError(f"mixture: {self.mixture} must be shares of at least 0 that sum to at most 1")
        return self
