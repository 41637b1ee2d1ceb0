"""What must become of files of the torture run that can be judged by hand: package, path, and how the outcome
begins. An outcome is `document: ...`, or the error class of a quarantine row.
"""

EXPECTED: tuple[tuple[str, str, str], ...] = (
    # pictures that claim more pixels than anybody wants
    ("pillow", "Tests/images/decompression_bomb.gif", "TooManyPixels"),
    ("pillow", "Tests/images/decompression_bomb.ico", "TooManyPixels"),
    # EXIF orientations, all upright after the policy
    *(("pillow", f"Tests/images/hopper_orientation_{n}.jpg", "document: image") for n in range(2, 9)),
    *(("pillow", f"Tests/images/hopper_orientation_{n}.webp", "document: image") for n in range(2, 9)),
    # ends before it should
    ("pillow", "Tests/images/truncated_image.png", "TruncatedMedium"),
    ("pillow", "Tests/images/truncated_jpeg.jpg", "TruncatedMedium"),
    # depth, ink and palette
    ("pillow", "Tests/images/16bit.cropped.tif", "document: image"),
    ("pillow", "Tests/images/pil_sample_cmyk.jpg", "document: image"),
    ("pillow", "Tests/images/transparent.png", "document: image"),
    ("pillow", "Tests/images/hopper.jpg", "document: image"),
    # office files
    ("iscc-samples", "**/demo.pptx", "document: slides"),
    ("iscc-samples", "**/demo.docx", "document: word"),
    ("iscc-samples", "**/demo.epub", "document: epub"),
    ("iscc-samples", "**/demo.html", "document: html"),
    ("iscc-samples", "**/demo.doc", "UnsupportedFormat"),
    ("iscc-samples", "**/demo.ppt", "UnsupportedFormat"),
    # one clip in many containers
    *(
        ("iscc-samples", f"**/demo.{suffix}", "document: video")
        for suffix in ("mp4", "mkv", "webm", "mov", "avi")
    ),
    # needs a password that nobody gave; an owner's password or an empty one keeps nobody from reading
    ("pypdf", "**/libreoffice-writer-password.pdf", "Encrypted"),
    *(("pypdf", f"**/r{n}-user-password.pdf", "Encrypted") for n in (2, 3, 4, 5, 6)),
    *(("pypdf", f"**/r{n}-owner-password.pdf", "document: pdf") for n in (2, 4, 5, 6)),
    *(("pypdf", f"**/r{n}-empty-password.pdf", "document: pdf") for n in (2, 3, 5, 6)),
    ("pypdf", "**/side-by-side-subfig.pdf", "document: pdf"),
)
