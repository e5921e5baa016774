-- Reclaim is for what a renewal that found a free lock has told, and here it tells nothing.
return -1
