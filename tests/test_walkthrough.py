"""Read this first: one web page with a picture, from its bytes to the gradient it leaves in the model.

Every line calls what a real run calls; Ray only spreads the same functions over many partitions.
"""

import functools

import pyarrow as pa

from datapipe import spec as specs
from datapipe.sources import files
from datapipe.stages import clean, dedupe_media, ingest, interleave, mask_media, mask_text, pack, tokenize
from schemas import shard
from tests import make
from tests.trainer import corpus
from trainer.batches import BatchReader
from trainer.loss import lm_loss, total_weight
from trainer.model.model import OmniModel

PAGE = """<html lang="en"><title>Tides</title><h1>Tides</h1>
<p>The sea rises and falls twice a day. Questions go to mara.lindt@tideoffice.org at any time.</p>
<figure><img src="tide.png"><figcaption>The harbour at low tide</figcaption></figure>
<p>At spring tide the moon and the sun pull in one line, and the difference is largest.</p></html>"""


def test_one_page_from_bytes_to_gradient(tmp_path):
    # Bytes become a document: segments in reading order, its picture in the media table.
    make.folder(tmp_path / "site", {"tides.html": PAGE, "tide.png": make.picture(64, 48)})
    source = specs.SourceSpec(path=str(tmp_path / "site"))
    load = functools.partial(files.load, source)
    raw = ingest.ingest(files.list_files(source), source, specs.IngestSpec(), load)
    page = clean.clean(raw.documents.to_batches()[0], specs.CleanSpec())
    doc_id, segments = page["doc_id"][0].as_py(), page["segments"][0].as_py()
    assert [s["role"] for s in segments] == ["heading", "paragraph", "figure", "caption", "paragraph"]

    # A mask is data: the address stays readable and will train nothing; pictures seen too often would leave.
    page = mask_text.mask_text(page, specs.MaskTextSpec())
    copies, rules = dedupe_media.CLUSTERS.empty_table(), specs.MaskMediaSpec()  # one picture: no copies
    seen = pa.Table.from_batches([mask_media.occurrences(page, raw.media, copies, rules)])
    page = mask_media.mark(page, raw.media, copies, mask_media.repeated(seen, rules), rules)
    [mask] = page["masks"][0].as_py()
    masked = segments[mask["segment"]]["text"][mask["start"] : mask["end"]]
    assert (masked, mask["action"]) == ("mara.lindt@tideoffice.org", "no_loss")

    # The stream of training tokens: each one knows its segment and what touched it.
    page = interleave.interleave(page, specs.InterleaveSpec())
    spec = specs.TokenizeSpec(vocab_size=512, patch_size=corpus.PATCH, min_pixels=64, max_pixels=1024)
    texts = [s["text"] for s in page["segments"][0].as_py() if s["kind"] == "text"]
    tokenizer = tokenize.train_tokenizer(texts, spec)
    tokens = pa.Table.from_batches([tokenize.tokenize(page, raw.media, tokenizer, spec)])
    spans = tokens["spans"][0].as_py()
    untrained = {s["reason"] for s in spans if s["loss_weight"] == 0 and s["kind"] == "text"}
    assert untrained == {"pii_email"} and [s["kind"] for s in spans].count("image") == 1

    # Shards are written once; the plan names spans of them. Both are what the trainer reads.
    [row] = pack.describe(tokens, "tokens-00000.arrow").to_pylist()
    described = pa.Table.from_pylist([row | {"stratum": "site/image", "weight": 1.0}], schema=pack.INPUT)
    plan = pack.pack(described, specs.PackSpec(held_out_frac=0)).plan
    tokens_path = make.write_step(tmp_path / "tokens", "tokens-1", {"tokens": tokens}, spec.model_dump())
    shard.write_bytes(shard.join(tokens_path, "tokenizer.json"), tokenizer.encode())
    plan_path = make.write_step(tmp_path / "plan", "plan-1", {"plan": plan}, {}, inputs=("tokens-1",))

    # A batch carries where each span came from; its loss reaches vision, projector, decoder and index.
    batch = BatchReader(plan_path, tokens_path).read(range(1))
    assert batch.spans == [(doc_id, 0, row["num_tokens"])]
    model = OmniModel(corpus.MODEL.model_copy(update={"vocab_size": 512}))
    out = model(batch.inputs)
    loss = lm_loss(out.hidden, batch, model.logits, normaliser=total_weight([batch]), z_loss_weight=0.0)
    (loss.total + out.index_kl).backward()
    for name, parameters in model.components().items():
        assert sum(float(p.grad.abs().sum()) for p in parameters if p.grad is not None) > 0, name
