"""Special tokens: the strings that mark documents, pictures and video in a token stream.

Owns their spelling, which is that of MiniMax-M3's tokenizer, so that an exported model speaks the same
format. Ids differ by tokenizer and are looked up there by these strings.
"""

BEGIN_OF_DOCUMENT = "]~b]"
END_OF_DOCUMENT = "[e~["
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["
START_OF_IMAGE = "]<]start of image[>["
END_OF_IMAGE = "]<]end of image[>["
START_OF_VIDEO = "]<]start of video[>["
END_OF_VIDEO = "]<]end of video[>["
VISION_PAD = "]<]vision pad[>["
END_OF_TEXT = "]!d~["
PAD = "]~!b["
THINK = ("<think>", "</think>")
TOOL_CALL = ("<tool_call>", "</tool_call>")
MULTIMODAL_THINK = ("<mm:think>", "</mm:think>")

SPECIAL_TOKENS = (
    BEGIN_OF_DOCUMENT,
    END_OF_DOCUMENT,
    END_OF_TEXT,
    IMAGE,
    VIDEO,
    START_OF_IMAGE,
    END_OF_IMAGE,
    START_OF_VIDEO,
    END_OF_VIDEO,
    VISION_PAD,
    PAD,
    *THINK,
    *TOOL_CALL,
    *MULTIMODAL_THINK,
)


def timestamp(t_s: float) -> str:
    """Return the text that precedes a temporal patch of a video shown at `t_s` seconds."""
    return f"]<]{t_s:.1f} seconds[>["
