"""What the gradients of a chunk with channel decays leave of each of its segments.

``pieces [slots, heads, PIECES, K]``, float32, has a row a segment from each place below on. Where
one kernel makes all of it, it leaves of every segment one row, what passes over it: ``SEGMENTS``.
"""

SEGMENTS = 8
"""Of a chunk. Pairs of one are taken one by one, unrolled: of four, compiling takes a minute."""

READING = 0
"""For gates: what queries of a segment read of the state before the chunk."""

WRITING = READING + SEGMENTS
"""What its keys write to the state after it."""

CROSSING = WRITING + SEGMENTS
"""What its pairs give that cross the middle of the chunk, then those that cross that of a half."""

BEFORE = CROSSING + 2 * SEGMENTS
"""Decay from the chunk's start to the segment."""

BEHIND = BEFORE + SEGMENTS
"""Decay from the segment to the chunk's end."""

BESIDE = BEHIND + SEGMENTS
"""Decay between the segment and the middle of the chunk, then that of its half."""

TOTAL = BESIDE + 2 * SEGMENTS
"""Decay of the chunk, one row."""

ACROSS = TOTAL + 1
"""For gates: what goes from the state before the chunk to that after it, one row."""

PIECES = ACROSS + 1
