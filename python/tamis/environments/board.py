"""Boards drawn for a terminal as plain text: the meaning of their colours is kept."""

import re

_CODES = re.compile(r"\x1b\[([\d;]*)m")
_OTHER = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def plain_board(text):
    """A board without escape codes.

    Highlighted characters are in brackets (`SF[F]F`), and coloured ones are named below (`blue: R`): in
    Gymnasium's boards these show the player's place, and what must be carried where.
    """
    pieces = _CODES.split(text)
    found, named, codes = [_OTHER.sub("", pieces[0])], [], set()
    for written, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        new = {int(code or 0) for code in written.split(";")}
        codes = new - {0} if 0 in new else codes | new
        piece = _OTHER.sub("", piece)
        if not piece:
            continue
        colours = [_COLOURS[code - 30] for code in sorted(codes) if 30 <= code <= 37]
        if colours:
            named.append(f"{' and '.join(colours)}: {piece.strip()}")
        is_highlighted = any(code == 7 or 40 <= code <= 47 or 100 <= code <= 107 for code in codes)
        found.append(f"[{piece}]" if is_highlighted else piece)
    lines = [line.rstrip() for line in "".join(found).strip("\n").split("\n")]
    return "\n".join([*lines, *dict.fromkeys(named)])
