"""What must become of files of the torture run that can be judged by hand: package, path, and how the outcome
begins. An outcome is `document: ...`, or the error class of a quarantine row.
"""

EXPECTED: tuple[tuple[str, str, str], ...] = (
    # pictures that claim more pixels than anybody wants
    ("pillow", "Tests/images/decompression_bomb.gif", "TooManyPixels"),
    ("pillow", "Tests/images/decompression_bomb.ico", "TooManyPixels"),
    ("pillow", "Tests/images/bmp/b/reallybig.bmp", "TooManyPixels"),
    ("pillow", "Tests/images/bmp/b/badwidth.bmp", "TooManyPixels"),
    ("pillow", "Tests/images/oom-8ed3316a4109213ca96fb8a256a0bfefdece1461.icns", "TooManyPixels"),
    # EXIF orientations, all upright after the policy
    *(("pillow", f"Tests/images/hopper_orientation_{n}.jpg", "document: image") for n in range(2, 9)),
    *(("pillow", f"Tests/images/hopper_orientation_{n}.webp", "document: image") for n in range(2, 9)),
    # ends before it should
    ("pillow", "Tests/images/truncated_image.png", "TruncatedMedium"),
    ("pillow", "Tests/images/truncated_jpeg.jpg", "TruncatedMedium"),
    ("pillow", "Tests/images/truncated_end_chunk.png", "TruncatedMedium"),
    ("pillow", "Tests/images/bmp/b/shortfile.bmp", "TruncatedMedium"),
    ("pillow", "Tests/images/01r_00.pcx", "TruncatedMedium"),
    # bytes changed on the way
    ("pillow", "Tests/images/broken_data_stream.png", "DamagedMedium"),
    ("pillow", "Tests/images/broken.png", "DamagedMedium"),
    ("pillow", "Tests/images/zero_width.gif", "DamagedMedium"),
    ("pillow", "Tests/images/crash-*", "DamagedMedium"),
    # drawings and formats that nothing here paints
    ("pillow", "Tests/images/eps/*.eps", "UnsupportedMedium"),
    ("pillow", "Tests/images/drawing.[ew]mf", "UnsupportedMedium"),
    ("pillow", "Tests/images/avif/hopper.heif", "UnsupportedMedium"),
    ("forensics-samples", "**/*.xcf", "UnsupportedMedium"),
    # depth, ink and palette
    ("pillow", "Tests/images/16bit.cropped.tif", "document: image"),
    ("pillow", "Tests/images/pil_sample_cmyk.jpg", "document: image"),
    ("pillow", "Tests/images/transparent.png", "document: image"),
    ("pillow", "Tests/images/hopper_gray.jpg", "document: image"),
    # office files
    ("iscc-samples", "**/demo.pptx", "document: slides"),
    ("iscc-samples", "**/demo.docx", "document: word"),
    ("iscc-samples", "**/demo.epub", "document: epub"),
    ("iscc-samples", "**/demo.html", "document: html"),
    ("iscc-samples", "**/demo.doc", "UnsupportedFormat"),
    ("iscc-samples", "**/demo.ppt", "UnsupportedFormat"),
    ("iscc-samples", "**/demo.xlsx", "UnsupportedFormat"),
    ("forensics-samples", "**/*.odt", "UnsupportedFormat"),
    ("pillow", "Tests/images/*.fpx", "UnsupportedFormat"),
    # masters and empty slides show nothing; a missing part costs what is in it, not the file
    ("python-pptx", "src/pptx/templates/default.pptx", "EmptyDocument"),
    ("python-pptx", "**/no-slides.pptx", "EmptyDocument"),
    ("python-pptx", "**/missing_rels_item.pptx", "document: slides, 2 text"),
    ("python-pptx", "**/no-core-props.pptx", "document: slides, 2 text"),
    ("python-pptx", "**/shp-movie-props.pptx", "document: slides, 1 video"),
    # sound without pictures
    ("iscc-samples", "**/audio/demo.o*", "UnknownMedium"),
    ("forensics-samples", "**/audio1/debian.ogg", "UnknownMedium"),
    # one clip in many containers
    *(
        ("iscc-samples", f"**/demo.{suffix}", "document: video")
        for suffix in ("mp4", "mkv", "webm", "mov", "avi", "3gp", "flv", "mpg", "ogv", "rm", "vob", "wmv")
    ),
    # needs a password that nobody gave; an owner's password or an empty one keeps nobody from reading
    ("forensics-samples", "**/a-text-pass-*.pdf", "Encrypted"),
    ("pypdf", "**/libreoffice-writer-password.pdf", "Encrypted"),
    *(("pypdf", f"**/r{n}-user-password.pdf", "Encrypted") for n in (2, 3, 4, 5, 6)),
    *(("pypdf", f"**/r{n}-owner-password.pdf", "document: pdf") for n in (2, 4, 5, 6)),
    *(("pypdf", f"**/r{n}-empty-password.pdf", "document: pdf") for n in (2, 3, 5, 6)),
    ("pikepdf", "**/blank.pdf", "EmptyDocument"),
    ("pikepdf", "**/fuzz/378014596.pdf", "MalformedMarkup"),
    ("pypdf", "**/side-by-side-subfig.pdf", "document: pdf"),
)
