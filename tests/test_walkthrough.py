"""Read this first: one web page with a picture, from its bytes to the gradient it leaves in the model.

Every line calls what a real run calls; Ray only spreads the same functions over many partitions.
"""

import functools

import pyarrow as pa

from datapipe.sources import files
from datapipe.spec import (
    CleanSpec,
    IngestSpec,
    InterleaveSpec,
    MaskMediaSpec,
    MaskTextSpec,
    PackSpec,
    SourceSpec,
    TokenizeSpec,
)
from datapipe.stages import clean, ingest, interleave, mask_media, mask_text, pack, tokenize
from schemas import shard
from tests import make
from trainer.batches import BatchReader
from trainer.loss import lm_loss, total_weight
from trainer.model.config import ModelConfig, VisionConfig
from trainer.model.model import OmniModel

PAGE = """<html lang="en"><title>Tides</title><h1>Tides</h1>
<p>The sea rises and falls twice a day. Questions go to mara.lindt@tideoffice.org at any time.</p>
<figure><img src="tide.png"><figcaption>The harbour at low tide</figcaption></figure>
<p>At spring tide the moon and the sun pull in one line, and the difference is largest.</p></html>"""
MODEL = ModelConfig(vocab_size=512, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, rotary_dim=4,
                    num_dense_layers=1, dense_intermediate_size=32, intermediate_size=16, shared_intermediate_size=16,
                    num_experts=4, index_dim=8, block_size=8, top_k_blocks=2, projector_hidden_size=32,
                    vision=VisionConfig(hidden_size=24, intermediate_size=32, num_layers=1, num_heads=2))


def test_one_page_from_bytes_to_gradient(tmp_path):
    # Bytes become a document: segments in reading order, its picture in the media table.
    make.folder(tmp_path / "site", {"tides.html": PAGE, "tide.png": make.picture(64, 48)})
    source = SourceSpec(path=str(tmp_path / "site"))
    raw = ingest.ingest(files.list_files(source), source, IngestSpec(), functools.partial(files.load, source))
    page = clean.clean(raw.documents.to_batches()[0], CleanSpec())
    doc_id, segments = page["doc_id"][0].as_py(), page["segments"][0].as_py()
    assert [s["role"] for s in segments] == ["heading", "paragraph", "figure", "caption", "paragraph"]

    # A mask is data: the address stays readable and will train nothing.
    page = mask_text.mask_text(page, MaskTextSpec())
    page = mask_media.mark(page, raw.media, mask_media.repeated(pa.Table.from_batches(
        [mask_media.occurrences(page, raw.media)]), MaskMediaSpec()), MaskMediaSpec())
    [mask] = page["masks"][0].as_py()
    masked = segments[mask["segment"]]["text"][mask["start"]:mask["end"]]
    assert (masked, mask["action"]) == ("mara.lindt@tideoffice.org", "no_loss")

    # The stream of training tokens: each one knows its segment and what touched it.
    page = interleave.interleave(page, InterleaveSpec())
    spec = TokenizeSpec(vocab_size=512, patch_size=8, min_pixels=256, max_pixels=1024)
    tokenizer = tokenize.train_tokenizer([s["text"] for s in page["segments"][0].as_py() if s["text"]], spec)
    tokens = pa.Table.from_batches([tokenize.tokenize(page, raw.media, tokenizer, spec)])
    spans = tokens["spans"][0].as_py()
    assert {s["reason"] for s in spans if s["loss_weight"] == 0 and s["kind"] == "text"} == {"pii_email"}
    assert [s["kind"] for s in spans].count("image") == 1

    # Shards are written once; the plan names spans of them. Both are what the trainer reads.
    row = pack.describe(tokens, "tokens-00000.arrow").to_pylist()[0] | {"stratum": "site/image", "weight": 1.0}
    plan = pack.pack(pa.Table.from_pylist([row], schema=pack.INPUT), PackSpec(held_out_frac=0)).plan
    written = [shard.write_table(str(tmp_path / "tokens" / "tokens-00000.arrow"), tokens)]
    shard.write_bytes(str(tmp_path / "tokens" / "tokenizer.json"), tokenizer.encode())
    shard.write_manifest(str(tmp_path / "tokens"), shard.Manifest("t", "1", spec.model_dump(), [], 1, 1, {}, {}, written))
    written = [shard.write_table(str(tmp_path / "plan" / "plan-00000.arrow"), plan)]
    shard.write_manifest(str(tmp_path / "plan"), shard.Manifest("p", "1", {}, ["t"], 1, 1, {}, {}, written))

    # A batch carries where each span came from; the loss reaches vision, projector and decoder.
    batch = BatchReader(str(tmp_path / "plan"), str(tmp_path / "tokens")).read(range(1))
    assert batch.spans == [(doc_id, 0, tokens["num_tokens"][0].as_py())]
    model = OmniModel(MODEL)
    out = model(batch.inputs)
    terms = lm_loss(out.hidden, batch, model.logits, normaliser=total_weight([batch]), z_loss_weight=0.0)
    (terms.total + out.index_kl).backward()
    for name, parameters in model.components().items():
        assert sum(float(p.grad.abs().sum()) for p in parameters if p.grad is not None) > 0, name
