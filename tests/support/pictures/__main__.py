"""Draws the pictures of the README and of the documentation; names of pictures draw only these."""

import sys

from support.pictures import PICTURES

for name, picture in PICTURES.items():
    if name in sys.argv[1:] or not sys.argv[1:]:
        picture.FILE.write_text(picture.drawn(picture.measured()), encoding="utf-8")
        print(picture.FILE)
