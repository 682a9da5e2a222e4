"""A reward that has nothing to do with the answer, so that the members of a group differ wherever their texts do."""

import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """A number from 0 up to 1 by only the text."""
    return zlib.crc32(solution_str.encode()) / 2**32
