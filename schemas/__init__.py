"""What a document, medium, token sequence, score, plan and rollout are: one Arrow schema a file, pyarrow
only.
"""
